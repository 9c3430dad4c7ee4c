"""ConsumerGroupHeartbeat (API 68; KIP-848, assignment interval KIP-1263): a member joins, lives, leaves.

Steps of a heartbeat (4 to 7 are `member_step`):
  1 validate the request            request_validation
  2 find or create the member       member_admission: fencing by epoch; a lost reply is forgiven; static_membership
  3 update the member               member_admission: what the request says anew
  4 its regular expression          regular_expressions: valid? known? a look at the topics behind the answer
  5 bump the group epoch            when the member reads something else, or its topics changed
  6 target assignment               target_assignment: the assignor, at most once per interval
  7 current assignment              current_assignment: revoke first, then assign
  8 reply                           heartbeat_reply

Where we differ from Kafka 4.3.1, on purpose: a known static member that joins again does not count against the maximum
group size (as Kafka 4.4), and need not have left (`static_membership`).
"""

from __future__ import annotations

from headrace.coordinator.consumer.circumstances import Circumstances
from headrace.coordinator.consumer.group import ConsumerGroup
from headrace.coordinator.consumer.heartbeat_reply import heartbeat_reply
from headrace.coordinator.consumer.member import JOIN_EPOCH, UNCHANGED_TIMEOUT_MS, ConsumerGroupMember
from headrace.coordinator.consumer.member_admission import admit_member, update_member
from headrace.coordinator.consumer.member_step import member_step
from headrace.coordinator.consumer.member_timers import member_timers
from headrace.coordinator.consumer.partitions import Partitions, partitions_of, without_epochs
from headrace.coordinator.consumer.soft_state import ConsumerGroupSoftState
from headrace.coordinator.request_context import RequestContext
from headrace.coordinator.result import CoordinatorResult, Reply
from headrace.protocol.messages import consumer_group_heartbeat_request as m
from headrace.protocol.units import to_ms

__all__ = ["consumer_group_heartbeat"]


def consumer_group_heartbeat(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    request: m.ConsumerGroupHeartbeatRequest,
    context: RequestContext,
    circumstances: Circumstances,
) -> CoordinatorResult:
    """A member joins (epoch 0) or lives (epoch > 0). Writes `soft` after the last step that may refuse.

    `group` is a new one when the group does not exist yet. Raises CoordinatorError.
    """
    owned = _owned(request)
    admission = admit_member(group, request, owned, max_size=circumstances.configuration.max_size)
    updated = update_member(admission.member, request, context)
    step = member_step(admission, updated, owned, soft, circumstances)
    before, after = admission.member, step.reconciled
    response = heartbeat_reply(
        member_id=after.member_id,
        member_epoch=after.member_epoch,
        heartbeat_interval_ms=circumstances.configuration.heartbeat_interval_ms,
        assigned=after.assigned if _tells_assignment(request, before, after) else None,
    )
    return CoordinatorResult(
        records=step.records(),
        replies=(Reply(token=context.token, response=response),),
        timers=(*step.timers(circumstances.now_ms), *member_timers(admission.group, before, after, circumstances)),
        events=step.events(),
    )


def _owned(request: m.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return partitions_of((each.topic_id, each.partitions) for each in request.topic_partitions)


def _tells_assignment(
    request: m.ConsumerGroupHeartbeatRequest, before: ConsumerGroupMember, after: ConsumerGroupMember
) -> bool:
    """A joining member is told its partitions, one that says everything, and one whose partitions changed."""
    says_all = (
        to_ms(request.rebalance_timeout) != UNCHANGED_TIMEOUT_MS
        and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
        and request.topic_partitions is not None
    )
    if request.member_epoch == JOIN_EPOCH or says_all:
        return True
    return before.assigned is not after.assigned and without_epochs(before.assigned) != without_epochs(after.assigned)
