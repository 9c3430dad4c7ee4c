"""A static member comes back without its member id (KIP-345): it takes the place of the one with its instance id.

In a stable group whose selected protocol stays the same there is no rebalance: the new id is written, the assignment
stays. But when a consumer comes back for other topics there is one (in Kafka nobody reads them until the next). The
leader is told of no rebalance from version 9 on (`skip_assignment`); before, it is told the old leader's id, so that it
takes itself for a follower and asks for its assignment. Who waited in the old member's name is fenced.
"""

from __future__ import annotations

from dataclasses import replace

from headrace.coordinator.classic import replies
from headrace.coordinator.classic.consumer_protocol import CONSUMER_PROTOCOL_TYPE, subscribed_topics
from headrace.coordinator.classic.group_state import ClassicGroupState
from headrace.coordinator.classic.member import ClassicMember
from headrace.coordinator.classic.rebalance import prepare_or_complete
from headrace.coordinator.classic.turn import ClassicTurn
from headrace.coordinator.request_context import RequestContext
from headrace.protocol.error_codes import ErrorCode

__all__ = ["replace_static_member"]

_SKIP_ASSIGNMENT_SINCE = 9


def replace_static_member(turn: ClassicTurn, sender: ClassicMember, context: RequestContext, reason: str) -> None:
    """`sender` has a new member id, and an instance id that the group knows."""
    group = turn.group
    leader_before = group.leader
    old = group.members[group.static_members[sender.instance_id or ""]]
    old = turn.end_join(old, ErrorCode.fenced_instance_id, old.member_id)
    old = turn.end_sync(old, ErrorCode.fenced_instance_id)
    turn.expect_no_heartbeat(old.member_id)
    member = group.take_place(old, sender.member_id)
    turn.expect_heartbeat(member)
    turn.tell("MemberReplaced", instance=sender.instance_id or "", member=member.member_id, old=old.member_id)
    member = replace(
        member,
        protocols=sender.protocols,
        rebalance_timeout_ms=sender.rebalance_timeout_ms,
        session_timeout_ms=sender.session_timeout_ms,
        join_token=context.token,
    )
    group.put(member)
    if (
        group.state is not ClassicGroupState.STABLE
        or group.selected_protocol() != group.protocol
        or (group.protocol_type == CONSUMER_PROTOCOL_TYPE and _reads_others(old, sender, group.protocol))
    ):
        prepare_or_complete(turn, f"static member {sender.instance_id} comes back as {member.member_id}; {reason}")
        return
    group.put(replace(member, join_token=None))
    turn.write_group()
    if context.api_version >= _SKIP_ASSIGNMENT_SINCE:
        is_leader = group.leader == member.member_id
        turn.reply(context.token, replies.joined(group, member.member_id, skip_assignment=is_leader))
    else:
        turn.reply(context.token, replies.joined(group, member.member_id, leader=leader_before))


def _reads_others(old: ClassicMember, new: ClassicMember, protocol: str | None) -> bool:
    """Of a group of consumers: bytes that differ need not mean other topics (they hold what the member owned)."""
    topics = [subscribed_topics(each.metadata(protocol)) for each in (old, new)]
    return None not in topics and topics[0] != topics[1]
