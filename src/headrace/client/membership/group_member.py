"""Common part of members of classic and consumer groups: lookup, retries, events, leaving, ending. Pure.

`ClassicMembership` and `ConsumerMembership` derive from it. `poll(now_ms)` returns at most one request and the time of
the next poll; `on_response` or `on_failure` take the outcome. A new request while one is in flight replaces it: only a
leave does so, and the runner then abandons the old exchange.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from headrace.client.membership.group_events import (
    GroupEvent,
    GroupFatal,
    GroupIdentity,
    GroupLeft,
    GroupWarning,
    LostReason,
    PartitionsLost,
    Rebalance,
    SubscribedTopics,
    TopicPartition,
)
from headrace.client.membership.request_manager import NEVER_MS, CoordinatorLookup, Outgoing, PollResult
from headrace.errors import BrokerError, Fenced, HeadraceError
from headrace.protocol.error_codes import ErrorCode, kafka_name
from headrace.protocol.framing import RequestMessage

__all__ = ["COORDINATOR_GONE", "GroupMember", "GroupMemberState", "group_error"]

COORDINATOR_GONE = frozenset({ErrorCode.not_coordinator, ErrorCode.coordinator_not_available})
"""Error codes after which the coordinator must be looked up again."""

_NOT_ALLOWED = frozenset(
    {
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


def group_error(
    code: ErrorCode, message: str, *, group_id: str, api: str, instance_id: str | None = None
) -> HeadraceError:
    """Return the error to raise at the application for a final error code of a group request.

    Args:
        code: The error code.
        message: The broker's message, maybe empty.
        group_id: The group.
        api: Kafka's name of the request.
        instance_id: The member's `group.instance.id`, if any.
    """
    kind, sentence, fix = _explain(code, message, group_id, instance_id)
    error = Fenced if kind == "instance-fenced" else BrokerError
    return error(
        kind,
        sentence,
        fix,
        kafka_code=int(code),
        kafka_name=kafka_name(code),
        kafka_message=message,
        retriable=False,
        api=api,
        group_id=group_id,
        why=message,
    )


def _explain(code: ErrorCode, message: str, group_id: str, instance_id: str | None) -> tuple[str, str, str]:
    """(code, sentence, fix)."""
    match code:
        case ErrorCode.fenced_instance_id:
            return (
                "instance-fenced",
                f"another member of {group_id} has taken over the instance id {instance_id}",
                "give each running consumer a group.instance.id of its own",
            )
        case ErrorCode.unreleased_instance_id:
            return (
                "instance-taken",
                f"another member of {group_id} holds the instance id {instance_id}",
                "give each running consumer a group.instance.id of its own",
            )
        case ErrorCode.unsupported_version:
            return (
                "unsupported-api",
                "the brokers do not offer the consumer rebalance protocol (KIP-848)",
                "Set group.protocol=classic, or enable it: kafka-features.sh upgrade --feature group.version=1",
            )
        case ErrorCode.inconsistent_group_protocol:
            return (
                "assignors-differ",
                f"the members of {group_id} have no assignor, or not the kind of group, in common with this one",
                "give all members one name in common in partition.assignment.strategy",
            )
        # Kafka answers a ConsumerGroupHeartbeat to a group of another type with the code of a missing group.
        case ErrorCode.group_id_not_found:
            return (
                "group-kind",
                f"{group_id} is another kind of group: {message or 'it does not take consumers'}",
                "List all groups with `headrace groups --list`, and use another group.id.",
            )
        case ErrorCode.group_max_size_reached:
            return (
                "group-full",
                f"the group {group_id} has as many members as the brokers allow",
                "raise group.max.size or group.consumer.max.size on the brokers, or run fewer consumers",
            )
        case ErrorCode.unknown_server_error:
            return (
                "heartbeat-refused",
                f"the coordinator of {group_id} failed with UNKNOWN_SERVER_ERROR: {message or 'no reason given'}",
                "Check the broker's log; assignor user data larger than message.max.bytes fails like this.",
            )
        case _ if code in _NOT_ALLOWED:
            return (
                "not-authorized",
                f"the brokers do not let this client take part in {group_id} ({kafka_name(code)}): {message}",
                "grant READ on the group, and READ on its topics",
            )
    return (
        "heartbeat-refused",
        f"the coordinator of {group_id} refused this member with {kafka_name(code)}: {message or 'no reason given'}",
        "Correct the cause and start the consumer again: the coordinator will not accept this member.",
    )


# A leave without an answer is given up after 5 s: the session timeout ends the membership then.
LEAVE_TIMEOUT_MS = 5_000
RETRY_BACKOFF_MS = 100
RETRY_BACKOFF_MAX_MS = 1_000


class GroupMemberState(Enum):
    """State of a member. Classic members use PREPARING to SYNCING, members of consumer groups RECONCILING."""

    UNSUBSCRIBED = "unsubscribed"  # not in the group
    PREPARING = "preparing"  # the application gives back what it must before the rebalance
    JOINING = "joining"  # a join is due or in flight
    ASSIGNING = "assigning"  # the leader looks up the numbers of partitions
    SYNCING = "syncing"  # SyncGroup is due or in flight
    RECONCILING = "reconciling"  # the application has an event with the changes and has not acknowledged it
    STABLE = "stable"  # no acknowledgement is outstanding
    LOST = "lost"  # the application has an event that everything is lost; after it the member joins again
    LEAVING = "leaving"  # a leave is due or in flight
    FATAL = "fatal"  # the coordinator refused the member for good


_S = GroupMemberState
RESTING = frozenset({_S.UNSUBSCRIBED, _S.FATAL})


class GroupMember:
    """Base of a member's state machine.

    Mutable soft state. `chance` yields numbers in [0, 1) for jitter.
    """

    api = ""

    def __init__(
        self, group_id: str, *, chance: Callable[[], float], instance_id: str | None = None, member_id: str = ""
    ) -> None:
        self._group_id = group_id
        self._chance = chance
        self._lookup = CoordinatorLookup(group_id, chance=chance)
        self._state = _S.UNSUBSCRIBED
        self._wanted = SubscribedTopics()
        self._owned: tuple[TopicPartition, ...] = ()
        self._in_flight: str | None = None
        self._sent_ms = 0
        self._retry_ms = 0
        self._backoff_ms = RETRY_BACKOFF_MS
        self._leave_deadline_ms = NEVER_MS
        self._leave_for_good: bool | None = None
        self._events: list[GroupEvent] = []
        self._numbers = 0
        self._awaited: int | None = None
        self._memberships = 0
        self.identity = GroupIdentity(member_id=member_id, instance_id=instance_id)

    @property
    def state(self) -> GroupMemberState:
        """The state of the member."""
        return self._state

    @property
    def owned(self) -> tuple[TopicPartition, ...]:
        """Partitions that the application acknowledged."""
        return self._owned

    @property
    def in_flight(self) -> bool:
        """Whether an answer is awaited."""
        return self._in_flight is not None

    def take_events(self) -> tuple[GroupEvent, ...]:
        """Return the events since the last call."""
        events, self._events = tuple(self._events), []
        return events

    def stop(self, error: HeadraceError) -> None:
        """End the membership with an error; also called by the runner, for instance for a broker without the API."""
        self._enter(_S.FATAL)
        self._in_flight = None
        self._awaited = None
        self._owned = ()
        self._memberships += 1
        self._set_generation(-1)
        self._events.append(GroupFatal(error=error))

    def leave(self, now_ms: int, *, for_good: bool | None = None) -> None:
        """Leave at once. The application has given everything back before.

        Args:
            now_ms: The time now.
            for_good: None: a static member will return, a dynamic one will not.
        """
        if self._state in RESTING or self._state is _S.LEAVING:
            return
        # An event that was not acknowledged needs no acknowledgement any more: everything was given back before the
        # call.
        self._awaited = None
        self._leave_for_good = for_good
        self._leave_deadline_ms = now_ms + LEAVE_TIMEOUT_MS
        self._enter(_S.LEAVING)
        self._retry_ms = now_ms

    # For the two kinds.

    def _enter(self, state: GroupMemberState) -> None:
        self._state = state

    def _set_generation(self, generation: int, member_id: str | None = None) -> None:
        self.identity = GroupIdentity(
            member_id=self.identity.member_id if member_id is None else member_id,
            generation=generation,
            instance_id=self.identity.instance_id,
            membership=self._memberships,
        )

    def _emit_rebalance(
        self,
        *,
        revoked: tuple[TopicPartition, ...],
        assigned: tuple[TopicPartition, ...] | None,
        all_revoked: bool = False,
    ) -> None:
        self._numbers += 1
        # Numbers rise over all events of this member, so an acknowledgement of an earlier event never fits a later one.
        self._awaited = self._numbers
        self._events.append(
            Rebalance(number=self._numbers, revoked=revoked, assigned=assigned, all_revoked=all_revoked)
        )

    def _lose(self, reason: LostReason, why: str) -> None:
        """Drop all partitions; the application is notified if it knows of any."""
        # 1. Rebalances that the application has not taken name partitions that are lost now.
        # 2. `_memberships` changes first: commits of the lost membership must not be repeated in the next one
        #    (`identity_to_retry_with`).
        # 3. An application that knows of no partition need not be notified; the member joins at once.
        self._events = [event for event in self._events if not isinstance(event, Rebalance)]
        notify = bool(self._owned) or self._awaited is not None
        self._memberships += 1
        self._owned = ()
        self._awaited = None
        if not notify:
            self._enter(_S.JOINING)
            return
        self._enter(_S.LOST)
        self._numbers += 1
        self._awaited = self._numbers
        self._events.append(PartitionsLost(number=self._numbers, reason=reason, why=why))

    def _warn(self, message: str) -> None:
        self._events.append(GroupWarning(message=message))

    def _send(
        self, kind: str, request: RequestMessage, now_ms: int, *, until_ms: int = NEVER_MS, any_node: bool = False
    ) -> PollResult:
        self._in_flight = kind
        self._sent_ms = now_ms
        outgoing = Outgoing(request=request, node=None if any_node else self._lookup.node)
        return PollResult(requests=(outgoing,), next_poll_ms=min(until_ms, self._leave_deadline_ms))

    def _wait(self, until_ms: int) -> PollResult:
        return PollResult(requests=(), next_poll_ms=min(until_ms, self._leave_deadline_ms))

    def _look_up(self, now_ms: int) -> PollResult:
        # Lookups have a backoff of their own: `_retry_ms` belongs to requests at the coordinator.
        if self._lookup.due_ms > now_ms:
            return self._wait(self._lookup.due_ms)
        return self._send("lookup", self._lookup.request(), now_ms, any_node=True)

    def _on_lookup(self, response: object, now_ms: int) -> None:
        code, message = self._lookup.on_response(response, now_ms)  # type: ignore[arg-type]
        if code != ErrorCode.none:
            self._fail(code, message)

    def _back_off(self, now_ms: int, throttle_ms: int = 0) -> None:
        # As `retry.backoff.ms` to `retry.backoff.max.ms` (KIP-580); a broker that throttles is obeyed even if the
        # backoff is shorter.
        pause_ms = max(1, round(self._backoff_ms * (1.0 - 0.2 * self._chance())), throttle_ms)
        self._retry_ms = now_ms + pause_ms
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _reset_backoff(self) -> None:
        self._backoff_ms = RETRY_BACKOFF_MS

    def _fail(self, code: ErrorCode, message: str = "") -> None:
        # Whatever the error is, the group goes on without this member, which is what a leave asks for.
        if self._state is _S.LEAVING:
            self._finish_leave(confirmed=False)
            return
        self.stop(
            group_error(code, message, group_id=self._group_id, api=self.api, instance_id=self.identity.instance_id)
        )

    def _finish_leave(self, *, confirmed: bool) -> None:
        self._enter(_S.UNSUBSCRIBED)
        self._in_flight = None
        self._leave_deadline_ms = NEVER_MS
        self._owned = ()
        self._memberships += 1
        self._set_generation(-1)
        self._events.append(GroupLeft(confirmed=confirmed))
