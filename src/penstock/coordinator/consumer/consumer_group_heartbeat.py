"""ConsumerGroupHeartbeat (API 68; KIP-848, assignment interval KIP-1263): a member joins, lives, leaves.

Steps of a heartbeat:
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

from dataclasses import replace

from penstock.coordinator.consumer import records
from penstock.coordinator.consumer.circumstances import Circumstances
from penstock.coordinator.consumer.current_assignment import reconcile
from penstock.coordinator.consumer.group import ConsumerGroup
from penstock.coordinator.consumer.heartbeat_reply import heartbeat_reply
from penstock.coordinator.consumer.member import JOIN_EPOCH, ConsumerGroupMember
from penstock.coordinator.consumer.member_admission import Admission, admit_member, update_member
from penstock.coordinator.consumer.member_timers import member_timers, regexes_timer
from penstock.coordinator.consumer.partitions import Partitions, partitions_of, without_epochs
from penstock.coordinator.consumer.regular_expressions import RegexChange, regex_change, resolution_due
from penstock.coordinator.consumer.request_validation import UNCHANGED_TIMEOUT_MS
from penstock.coordinator.consumer.soft_state import ConsumerGroupSoftState
from penstock.coordinator.consumer.subscriptions import Subscriptions
from penstock.coordinator.consumer.target_assignment import TargetAssignment, target_assignment
from penstock.coordinator.heartbeat_events import heartbeat_events
from penstock.coordinator.member_timer_keys import timers_of_replaced
from penstock.coordinator.records.consumer_schemas import ConsumerGroupMetadataValue
from penstock.coordinator.request_context import RequestContext
from penstock.coordinator.result import (
    CancelTimer,
    CoordinatorRecord,
    CoordinatorResult,
    Reply,
    SetTimer,
)
from penstock.protocol.messages import consumer_group_heartbeat_request as m
from penstock.protocol.units import to_ms

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
    group, member = admission.group, admission.member
    updated = update_member(member, request, context)
    change = regex_change(group, member, updated)
    subscriptions = group.subscriptions
    if updated is not member:
        subscriptions = subscriptions.changed(member.metadata, updated.metadata)
    names_changed = updated.metadata.subscribed_topic_names != member.metadata.subscribed_topic_names
    resolution = resolution_due(group, soft, change, subscriptions, circumstances)
    metadata = bump_group_epoch(
        group, soft, subscriptions, circumstances, reads_others=names_changed or change.is_known
    )
    target = target_assignment(group, updated, subscriptions, metadata.epoch, circumstances)
    subscription_changed = names_changed or change.changed
    reconciled = updated
    if subscription_changed or not updated.is_reconciled_to(target.epoch):
        topics = subscriptions.topics_of(updated, circumstances.image)
        reconciled = reconcile(
            group,
            updated,
            target=target.partitions,
            target_epoch=target.epoch,
            readable={topic.topic_id for topic in topics.values()},
            subscription_changed=subscription_changed,
            owned=owned,
        )

    soft.compared(circumstances.image, metadata.epoch)
    replaced_id = None if admission.replacement is None else admission.replacement.replaced_id
    timers: list[SetTimer | CancelTimer] = [
        *timers_of_replaced(admission.group.group_id, replaced_id, admission.member.member_id),
        *member_timers(group, member, reconciled, circumstances),
    ]
    if resolution is not None:
        soft.resolution = resolution
        timers.append(SetTimer(key=regexes_timer(group.group_id), deadline_ms=circumstances.now_ms))
    response = heartbeat_reply(
        member_id=reconciled.member_id,
        member_epoch=reconciled.member_epoch,
        heartbeat_interval_ms=circumstances.configuration.heartbeat_interval_ms,
        assigned=reconciled.assigned if _tells_assignment(request, member, reconciled) else None,
    )
    return CoordinatorResult(
        records=_records(admission, updated, change, metadata, target, reconciled),
        replies=(Reply(token=context.token, response=response),),
        timers=tuple(timers),
        events=heartbeat_events(
            admission.group.group_id,
            admission.member.member_id,
            joined=admission.member.member_id not in admission.group.members,
            replaced_id=replaced_id,
            bumped_to=None if metadata is admission.group.metadata else metadata.epoch,
            computed_for=target.epoch if target.records else None,
        ),
    )


def bump_group_epoch(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    subscriptions: Subscriptions,
    circumstances: Circumstances,
    *,
    reads_others: bool,
) -> ConsumerGroupMetadataValue:
    """Step 5: the group's metadata, one epoch on when the assignor would see something new; else the same object.

    A regular expression that is not resolved yet is no reason: it will be one when it is.
    """
    if not reads_others and not soft.must_compare(circumstances.image, group.group_epoch):
        return group.metadata
    metadata_hash = subscriptions.metadata_hash(circumstances.image)
    if not reads_others and metadata_hash == group.metadata.metadata_hash:
        return group.metadata
    return replace(group.metadata, epoch=group.group_epoch + 1, metadata_hash=metadata_hash)


def _owned(request: m.ConsumerGroupHeartbeatRequest) -> Partitions | None:
    if request.topic_partitions is None:
        return None
    return partitions_of((each.topic_id, each.partitions) for each in request.topic_partitions)


def _records(
    admission: Admission,
    updated: ConsumerGroupMember,
    change: RegexChange,
    metadata: ConsumerGroupMetadataValue,
    target: TargetAssignment,
    reconciled: ConsumerGroupMember,
) -> tuple[CoordinatorRecord, ...]:
    group = admission.group
    found: list[CoordinatorRecord] = []
    if admission.replacement is not None:
        found.extend(admission.replacement.records)
    if updated is not admission.member:
        found.append(records.member_record(group.group_id, updated))
    found.extend(change.records)
    if metadata is not group.metadata:
        found.append(records.group_metadata_record(group.group_id, metadata))
        if group.partition_metadata is not None:  # of a broker before 4.1; the hash stands for it now
            found.append(records.partition_metadata_tombstone(group.group_id))
    found.extend(target.records)
    if reconciled is not updated:
        found.append(records.current_assignment_record(group.group_id, reconciled))
    return tuple(found)


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
