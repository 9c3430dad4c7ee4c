"""StreamsGroupHeartbeat (KIP-1071): what is reported and when in full, requests, error codes, supported version. Pure.

`OwnedReport` and `TaskOffsetReport` track what was sent, as `HeartbeatState` does in Kafka's
`StreamsGroupHeartbeatRequestManager`. Null task lists mean "unchanged". They would fence a member whose last reply was
lost, so after a lost or refused request the lists are sent in full.

Version 1 came with Kafka 4.4, and with it static members and task offsets. Brokers 4.2 and 4.3 refuse both with
INVALID_REQUEST, so they are sent only to a coordinator that offers version 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from kio.schema.types import GroupId
from kio.static.primitive import i32, i64, u16

from headrace.client.membership.assignment import OwnedTasks, TaskId, Tasks, tasks_of
from headrace.client.membership.endpoints import NO_ENDPOINT_EPOCH, Endpoint
from headrace.client.membership.events import SettingIgnored
from headrace.client.membership.topology import Topology
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = [
    "INSTANCE_CONFLICTS",
    "JOIN_EPOCH",
    "LEAVE_EPOCH",
    "LEAVE_FOR_A_WHILE_EPOCH",
    "Extras",
    "HeartbeatVersion",
    "MemberIdentity",
    "OwnedReport",
    "Reaction",
    "TaskId",
    "TaskOffsetReport",
    "fatal_error",
    "join_request",
    "leave_request",
    "reaction_to",
    "regular_request",
    "tasks_in",
]


class OwnedReport:
    """Owned tasks as heartbeats report them.

    Mutable: the tasks acknowledged last, those that may be open besides, and whether the lists are due. Tasks that the
    application has received and may have opened count as owned until it acknowledges.
    """

    def __init__(self) -> None:
        self._acknowledged = OwnedTasks()
        self._maybe_opened = OwnedTasks()
        self.is_due = True

    def clear(self) -> None:
        """Forget all tasks after they were lost."""
        self._acknowledged = self._maybe_opened = OwnedTasks()
        self.is_due = True

    @property
    def is_empty(self) -> bool:
        """Whether the application can have no task open."""
        return self._acknowledged.union(self._maybe_opened) == OwnedTasks()

    def resend(self) -> None:
        """Send the lists again: it is unknown what the coordinator received last."""
        self.is_due = True

    def add_assigned(self, tasks: OwnedTasks) -> None:
        """Count these tasks as owned from now on: the application receives them and may open them before it
        acknowledges.
        """
        self._maybe_opened = self._maybe_opened.union(tasks)

    def on_joined(self) -> None:
        """Send no lists: the coordinator knows that a joiner owns nothing."""
        self.is_due = False

    def acknowledge(self, tasks: OwnedTasks, *, is_newest: bool) -> None:
        """Replace the owned tasks by those that the application works on, for the newest assignment or an older one."""
        self._acknowledged = tasks
        if is_newest:
            self._maybe_opened = OwnedTasks()
            self.is_due = True

    def within(self, tasks: OwnedTasks) -> bool:
        """Return whether the acknowledged tasks hold nothing else than these."""
        return self._acknowledged.within(tasks)

    def take(self) -> OwnedTasks | None:
        """Return the lists for the heartbeat that is sent now; None if they are unchanged."""
        if not self.is_due:
            return None
        # Cleared when sent, not when answered: an acknowledgement while this request is in flight makes the lists due
        # for the next one. If this request is lost, `resend` makes them due as well.
        self.is_due = False
        return self._acknowledged.union(self._maybe_opened)


TaskOffset = m.streams_group_heartbeat_request.TaskOffset
# Kafka's default of group.streams.task.offset.interval.ms, until the coordinator returns its own.
DEFAULT_INTERVAL_MS = 60_000


class TaskOffsetReport:
    """Changelog offsets of the member's state stores, reported per task in heartbeats.

    Mutable. They are sent with the join and then once per `task.offset.interval.ms` of the coordinator, always all of
    them: a coordinator that lost them (they are soft state there) and a lost reply need no special case. Requires
    version 1.
    """

    def __init__(self) -> None:
        self._offsets: Mapping[TaskId, int] = MappingProxyType({})
        self._end_offsets: Mapping[TaskId, int] = MappingProxyType({})
        self._interval_ms = DEFAULT_INTERVAL_MS
        self._told_ms: int | None = None
        self._changed = False

    def __bool__(self) -> bool:
        return bool(self._offsets or self._end_offsets)

    def update(
        self, offsets: Mapping[TaskId, int], end_offsets: Mapping[TaskId, int], *, at_once: bool = False
    ) -> None:
        """Replace what is reported; `at_once` ignores the interval, because another instance waits for a copy."""
        if at_once:
            self._told_ms = None
        if offsets != self._offsets or end_offsets != self._end_offsets:
            self._offsets = MappingProxyType(dict(offsets))
            self._end_offsets = MappingProxyType(dict(end_offsets))
            self._changed = True

    def is_due(self, now_ms: int) -> bool:
        """Return whether the next heartbeat should carry the offsets."""
        # The interval is a floor, not a period: stores without new records send nothing, however long they are idle.
        return self._changed and (self._told_ms is None or now_ms >= self._told_ms + self._interval_ms)

    def on_sent(self, now_ms: int) -> None:
        """Note that a heartbeat with the offsets was sent."""
        # Cleared when sent, like the owned lists; a lost request sets it again (`resend`).
        self._changed = False
        self._told_ms = now_ms

    def resend(self) -> None:
        """Send the offsets with the next heartbeat: it is unknown whether the coordinator has them."""
        self._changed = bool(self)
        self._told_ms = None

    def set_interval(self, interval_ms: int) -> None:
        """Set the interval that the coordinator returned."""
        if interval_ms > 0:
            self._interval_ms = interval_ms

    def lists(self) -> tuple[tuple[TaskOffset, ...], tuple[TaskOffset, ...]]:
        """Return (offsets, end offsets) for a heartbeat."""
        return _listed(self._offsets), _listed(self._end_offsets)


def _listed(offsets: Mapping[TaskId, int]) -> tuple[TaskOffset, ...]:
    return tuple(
        TaskOffset(subtopology_id=name, partition=i32(partition), offset=i64(offset))
        for (name, partition), offset in sorted(offsets.items())
    )


JOIN_EPOCH = 0
LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
# In a heartbeat between join and leave, Kafka reads -1 as "unchanged"; in a join it refuses -1 (INVALID_REQUEST).
_UNCHANGED_MS = -1

Request = m.streams_group_heartbeat_request.StreamsGroupHeartbeatRequest
TaskIds = m.streams_group_heartbeat_request.TaskIds


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberIdentity:
    """Attributes of a member that never change."""

    group_id: str
    member_id: str
    process_id: str
    topology: Topology
    rebalance_timeout_ms: int
    rack_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Fields of a heartbeat besides the tasks. `instance_id` is None where the coordinator refuses it."""

    instance_id: str | None = None
    endpoint: Endpoint | None = None
    endpoint_epoch: int = NO_ENDPOINT_EPOCH
    task_offsets: tuple[TaskOffset, ...] | None = None
    task_end_offsets: tuple[TaskOffset, ...] | None = None
    shutdown_application: bool = False


def join_request(identity: MemberIdentity, extras: Extras) -> Request:
    """Return a join: every field, epoch 0 and three empty lists, because a joiner owns nothing."""
    # Kafka refuses a join with INVALID_REQUEST unless the topology and a rebalance timeout are given and all three task
    # lists are there and empty (`GroupCoordinatorService`). The endpoint of a join replaces the stored one, None
    # included; a later heartbeat only replaces it by another one.
    return Request(
        group_id=GroupId(identity.group_id),
        member_id=identity.member_id,
        member_epoch=i32(JOIN_EPOCH),
        endpoint_information_epoch=i32(extras.endpoint_epoch),
        instance_id=extras.instance_id,
        rack_id=identity.rack_id,
        rebalance_timeout=from_ms(identity.rebalance_timeout_ms),
        topology=identity.topology.to_heartbeat(),
        active_tasks=(),
        standby_tasks=(),
        warmup_tasks=(),
        process_id=identity.process_id,
        user_endpoint=_endpoint(extras.endpoint),
        client_tags=(),
        task_offsets=extras.task_offsets,
        task_end_offsets=extras.task_end_offsets,
    )


def regular_request(
    identity: MemberIdentity, extras: Extras, *, member_epoch: int, owned: OwnedTasks | None
) -> Request:
    """Return a heartbeat between join and leave; `owned` None reports that nothing changed since the last answer."""
    # - No topology: Kafka refuses one at any epoch but 0.
    # - The three task lists are null together or given together; anything else is INVALID_REQUEST.
    # - Rack, process id and client tags are left out: null is "unchanged" for each of them.
    return Request(
        group_id=GroupId(identity.group_id),
        member_id=identity.member_id,
        member_epoch=i32(member_epoch),
        endpoint_information_epoch=i32(extras.endpoint_epoch),
        instance_id=extras.instance_id,
        rebalance_timeout=from_ms(_UNCHANGED_MS if owned is None else identity.rebalance_timeout_ms),
        active_tasks=None if owned is None else _task_ids(owned.active),
        standby_tasks=None if owned is None else _task_ids(owned.standby),
        warmup_tasks=None if owned is None else _task_ids(owned.warmup),
        user_endpoint=_endpoint(extras.endpoint),
        client_tags=None,
        task_offsets=extras.task_offsets,
        task_end_offsets=extras.task_end_offsets,
        shutdown_application=extras.shutdown_application,
    )


def leave_request(identity: MemberIdentity, extras: Extras, *, for_a_while: bool) -> Request:
    """Return a leave: epoch -1, or -2 for a static member that will return."""
    # -2 without an instance id is INVALID_REQUEST, so callers ask `_will_return` first. The coordinator compares no
    # epoch when a member leaves: a member that was fenced meanwhile can still leave.
    epoch = LEAVE_FOR_A_WHILE_EPOCH if for_a_while else LEAVE_EPOCH
    return regular_request(identity, extras, member_epoch=epoch, owned=None)


def tasks_in(reply: m.streams_group_heartbeat_response.StreamsGroupHeartbeatResponse) -> OwnedTasks | None:
    """Return the tasks of a reply; None if they are unchanged."""
    # Null: unchanged. Kafka sends the three lists together, in the reply to a join and whenever the assigned tasks
    # changed.
    if reply.active_tasks is None and reply.standby_tasks is None and reply.warmup_tasks is None:
        return None
    return OwnedTasks(
        active=_tasks(reply.active_tasks), standby=_tasks(reply.standby_tasks), warmup=_tasks(reply.warmup_tasks)
    )


def _tasks(task_ids: tuple[m.streams_group_heartbeat_response.TaskIds, ...] | None) -> Tasks:
    return tasks_of({ids.subtopology_id: ids.partitions for ids in task_ids or ()})


def _task_ids(tasks: Tasks) -> tuple[TaskIds, ...]:
    return tuple(
        TaskIds(subtopology_id=name, partitions=tuple(i32(p) for p in partitions)) for name, partitions in tasks.items()
    )


def _endpoint(endpoint: Endpoint | None) -> m.streams_group_heartbeat_request.Endpoint | None:
    if endpoint is None:
        return None
    return m.streams_group_heartbeat_request.Endpoint(host=endpoint.host, port=u16(endpoint.port))


API = "StreamsGroupHeartbeat"


class Reaction(Enum):
    """Reaction of a member to an error code."""

    RETRY = "retry"
    FIND_COORDINATOR = "find-coordinator"
    REJOIN = "rejoin"
    STOP = "stop"


_REACTIONS = MappingProxyType(
    {
        # KIP-1071 lists the codes; Kafka's StreamsGroupHeartbeatRequestManager.onErrorResponse has the same reactions.
        # Fenced members join again with the same id, so that sticky assignment still finds their former tasks.
        ErrorCode.coordinator_load_in_progress: Reaction.RETRY,
        ErrorCode.not_coordinator: Reaction.FIND_COORDINATOR,
        ErrorCode.coordinator_not_available: Reaction.FIND_COORDINATOR,
        ErrorCode.fenced_member_epoch: Reaction.REJOIN,
        ErrorCode.unknown_member_id: Reaction.REJOIN,
    }
)


INSTANCE_CONFLICTS = frozenset({ErrorCode.unreleased_instance_id, ErrorCode.fenced_instance_id})
"""Error codes for two processes with one instance id; `StaticMember` handles them."""


def reaction_to(code: ErrorCode) -> Reaction:
    """Return the reaction to an error code, following KIP-1071 and Kafka's Java client.

    Unknown codes stop the member, except those that Kafka marks retriable.
    """
    return _REACTIONS.get(code, Reaction.RETRY if is_retriable(code) else Reaction.STOP)


def fatal_error(code: ErrorCode, message: str, *, group_id: str, joining: bool) -> HeadraceError:
    """Return the error to raise at the application for a code whose reaction is STOP."""
    kind, sentence, fix = _explain(code, message, group_id=group_id, joining=joining)
    return BrokerError(
        kind,
        sentence,
        fix,
        kafka_code=int(code),
        kafka_name=kafka_name(code),
        retriable=False,
        api=API,
        group_id=group_id,
        why=message,
    )


_AUTHORIZATION = frozenset(
    {
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
    }
)


def _explain(code: ErrorCode, message: str, *, group_id: str, joining: bool) -> tuple[str, str, str]:
    """(code, sentence, fix)."""
    if code == ErrorCode.unsupported_version:
        return (
            "streams-protocol-off",
            "the brokers do not offer the streams rebalance protocol (KIP-1071)",
            "use Apache Kafka 4.2 or later and switch it on: kafka-features.sh upgrade --feature streams.version=1",
        )
    # Kafka has no code of its own for another topology than the group's; only the message tells it from a malformed
    # request.
    if code == ErrorCode.invalid_request and joining and "topology" in message.lower():
        return (
            "topology-differs",
            f"the group {group_id} exists with another topology than this application has",
            f"run the same version everywhere; for a new one stop all members, then:  headrace upgrade {group_id}",
        )
    if code == ErrorCode.streams_invalid_topology:
        return (
            "topology-invalid",
            f"the coordinator refuses the topology of {group_id}: {message}",
            "give repartition topics a number of partitions, or a source they can take it from",
        )
    # A member that is known already never meets this bound since Kafka 4.4; 4.2 and 4.3 refuse its rejoin as well.
    if code == ErrorCode.group_max_size_reached:
        return (
            "group-full",
            f"the group {group_id} has as many members as the brokers allow",
            "raise group.streams.max.size on the brokers, or run fewer instances",
        )
    # Kafka answers a join to a group of another type with the code of a missing group. Only an empty classic group is
    # converted; an empty consumer group is not (`GroupMetadataManager.getOrCreateStreamsGroup`).
    if code == ErrorCode.group_id_not_found:
        if joining:
            return (
                "group-kind",
                f"{group_id} is not a streams group: it is a classic, consumer or share group",
                "see which:  headrace groups --list ; an empty classic group gives way, else take another name",
            )
        return (
            "group-missing",
            f"the group {group_id} does not exist any more",
            "it was deleted, or the broker lost its data; start the application again",
        )
    if code in _AUTHORIZATION:
        return (
            "not-authorized",
            f"the brokers do not let this client take part in the group {group_id} ({kafka_name(code)}): {message}",
            "grant READ on the group, DESCRIBE on its topics and CREATE for its internal topics",
        )
    return (
        "heartbeat-refused",
        f"the coordinator of {group_id} refused a heartbeat with {kafka_name(code)}: {message or 'no reason given'}",
        "Correct the cause and start the application again: the coordinator will not accept this member.",
    )


API_KEY = int(ApiKey.STREAMS_GROUP_HEARTBEAT)
NEWEST = 1
SOFTWARE_NAME = "headrace"


class HeartbeatVersion:
    """Highest version of StreamsGroupHeartbeat that the coordinator offers.

    Mutable; None until asked. It is asked with ApiVersions, and only if an instance id or offsets are to be sent.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._told = False

    @property
    def is_newest(self) -> bool:
        """Whether instance ids and task offsets may be sent."""
        return self.number is not None and self.number >= NEWEST

    def forget(self) -> None:
        """Forget the version: another node coordinates, or the same one after a restart with maybe another version."""
        self.number = None

    def request(self) -> RequestMessage:
        """Return the ApiVersions request, for the coordinator's node."""
        return m.api_versions_request.ApiVersionsRequest(
            client_software_name=SOFTWARE_NAME, client_software_version="membership"
        )

    def on_response(self, response: m.api_versions_response.ApiVersionsResponse) -> None:
        """Apply the answer; an error leaves the version unknown."""
        if response.error_code != ErrorCode.none:
            return
        # 0 also for a broker without the API: its first heartbeat then ends with UNSUPPORTED_VERSION, whose error has
        # the fix.
        offered = [int(key.max_version) for key in response.api_keys if int(key.api_key) == API_KEY]
        self.number = offered[0] if offered else 0

    def ignored(self, instance_id: str | None, *, keeps_member_id: bool = False) -> SettingIgnored | None:
        """Return the event that the instance id cannot be used with this coordinator; None if it can, or after the
        first time.
        """
        if self._told or instance_id is None or self.number is None or self.is_newest:
            return None
        self._told = True
        return SettingIgnored(
            setting="group.instance.id",
            message=f"the coordinator does not support static members of streams groups: {instance_id} joins as a "
            "dynamic member" + (" with a member id that it keeps over restarts" if keeps_member_id else ""),
            fix="use brokers of Apache Kafka 4.4 or later, or remove group.instance.id",
        )
