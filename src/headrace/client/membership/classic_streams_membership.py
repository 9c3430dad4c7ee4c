"""Member of a classic group whose leader assigns tasks, for clusters without streams groups. Pure, as
`StreamsMembership`, with the same calls and events.

Rules:

- A join claims every active task that the application may have open. The leader assigns a claimed task to no other
  member; one that is to move is left out of the assignment first (KIP-429's two phases, on tasks). When the application
  has given it back, the member joins again without the claim.
- A rebalance pauses no task and waits for no application: the member joins at once, and heartbeats follow the sync.
- `member_epoch` of the snapshot is the generation. It rises with the answer to a join: the coordinator refuses commits
  with the former one from then on (`TaskOwnership`).
- `UNKNOWN_MEMBER_ID` and `ILLEGAL_GENERATION` lose all tasks and join again; `FENCED_INSTANCE_ID` ends the membership.
- The leader looks up the partitions of all topics of the topology, creates missing internal topics, and begins a
  rebalance when the numbers of partitions change. `TaskProtocol` encodes, decodes and assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Protocol

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from headrace.assignors.assignor import NO_GENERATION, Assignment, Subscription
from headrace.assignors.consumer_protocol import (
    MalformedUserData,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace.client.membership import events as e
from headrace.client.membership.assignment import (
    AssignmentSnapshot,
    OwnedTasks,
    TaskId,
    difference,
    task_ids,
    tasks_from,
    tasks_of,
)
from headrace.client.membership.endpoints import EndpointMap
from headrace.client.membership.events import Status, StatusTracker
from headrace.client.membership.group_events import GroupIdentity, TopicPartition
from headrace.client.membership.group_member import COORDINATOR_GONE, group_error
from headrace.client.membership.group_requests import (
    classic_heartbeat_request,
    join_group_request,
    leave_group_request,
    sync_group_request,
)
from headrace.client.membership.member_core import LEAVE_TIMEOUT_MS, RESTING, MemberState
from headrace.client.membership.request_manager import (
    NEVER_MS,
    RETRY_BACKOFF_MAX_MS,
    RETRY_BACKOFF_MS,
    CoordinatorLookup,
    Outgoing,
    PollResult,
    TopicLookup,
    partition_counts,
    topics_request,
)
from headrace.client.membership.task_ownership import TaskOwnership
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms, to_ms

__all__ = ["PROTOCOL_NAME", "ClassicStreamsMembership", "TaskAssignment", "TaskPlan", "TaskProtocol", "TaskReport"]

PROTOCOL_NAME = "headrace-streams"
"""The only protocol of the group: a consumer's assignor would divide partitions, not tasks."""

# The coordinator answers a join when all members joined, at the latest after the rebalance timeout, and needs a moment.
JOIN_MARGIN_MS = 5_000
REQUEST_TIMEOUT_MS = 30_000

JoinReply = m.join_group_response.JoinGroupResponse
SyncReply = m.sync_group_response.SyncGroupResponse
HeartbeatReply = m.heartbeat_response.HeartbeatResponse
LeaveReply = m.leave_group_response.LeaveGroupResponse
Metadata = m.metadata_response.MetadataResponse
Created = m.create_topics_response.CreateTopicsResponse
FindCoordinator = m.find_coordinator_response.FindCoordinatorResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """State of a member at its join. `owned` has every active task that it may have open."""

    owned: OwnedTasks
    task_offsets: Mapping[TaskId, int]
    task_end_offsets: Mapping[TaskId, int]
    shutdown_application: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssignment:
    """Assignment of one member. `follow_up`: another rebalance is to move tasks to warmed-up members."""

    tasks: OwnedTasks = field(default_factory=OwnedTasks)
    status: Status = ()
    endpoints: EndpointMap = field(default_factory=lambda: MappingProxyType({}))
    follow_up: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """Plan of the leader. With `missing_topics` it is not used: the topics are created, and the leader plans again.

    Attributes:
        active: Member id → active tasks, from which the assigned partitions for Kafka's tools are derived.
        user_data: Member id → encoded assignment.
        missing_topics: Internal topics to create, partitions resolved.
    """

    active: Mapping[str, Mapping[str, Sequence[int]]] = field(default_factory=dict)
    user_data: Mapping[str, bytes] = field(default_factory=dict)
    missing_topics: tuple[InternalTopic, ...] = ()


class TaskProtocol(Protocol):
    """Codec of the user data, and the leader's rules. Pure."""

    def encode_report(self, report: TaskReport) -> bytes:
        """Return the user data of a subscription."""

    def decode_assignment(self, user_data: bytes) -> TaskAssignment:
        """Decode the user data of an assignment. Raises MalformedUserData."""

    def assign(self, members: Mapping[str, Subscription], partitions: Mapping[str, int]) -> TaskPlan:
        """Assign all tasks; a task that a member claims is assigned to no other."""


class _Phase(Enum):
    """Step of the rebalance."""

    IDLE = "idle"  # heartbeats only
    JOIN = "join"  # JoinGroup is due or in flight
    ASSIGN = "assign"  # the leader looks up partitions and creates internal topics
    SYNC = "sync"  # SyncGroup is due or in flight


class ClassicStreamsMembership:
    """State machine of one member. Mutable.

    Call `join`, then `poll`, and after each request `on_response` or `on_failure`. One request is in flight at a time;
    a request while another one is in flight replaces it.
    """

    def __init__(
        self,
        group_id: str,
        protocol: TaskProtocol,
        topology: Topology,
        *,
        chance: Callable[[], float],
        rebalance_timeout_ms: int = 300_000,
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: int = 3_000,
        metadata_max_age_ms: int = 300_000,
        probing_rebalance_interval_ms: int = 60_000,
        rack_id: str | None = None,
        instance_id: str | None = None,
        member_id: str = "",
    ) -> None:
        """Args:
        group_id: The classic group.
        protocol: Codec and the leader's rules.
        topology: The application's topology; all members have the same one.
        chance: Returns random numbers in [0, 1) for jitter.
        rebalance_timeout_ms: How long the coordinator waits for members to join again.
        session_timeout_ms: `session.timeout.ms`, after which the coordinator removes a silent member.
        heartbeat_interval_ms: `heartbeat.interval.ms`.
        metadata_max_age_ms: How often the leader compares the numbers of partitions.
        probing_rebalance_interval_ms: Time until the rebalance that an assignment announces (`follow_up`).
        rack_id: The member's rack.
        instance_id: `group.instance.id` of a static member (KIP-345).
        member_id: Id of a member that this one continues: it joins under it, and claims nothing. Empty: the
            coordinator gives out an id.
        """
        self._group_id = group_id
        self._protocol = protocol
        self._topics_of = {s.subtopology_id: _source_topics(s) for s in topology.subtopologies}
        self._sources = tuple(sorted({name for names in self._topics_of.values() for name in names}))
        self._all_topics = frozenset(self._sources) | {topic.name for topic in topology.internal_topics}
        self._chance = chance
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._session_timeout_ms = session_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._probing_interval_ms = probing_rebalance_interval_ms
        self._rack_id = rack_id
        self._lookup = CoordinatorLookup(group_id, chance=chance)
        self._topic_lookup = TopicLookup(metadata_max_age_ms)
        self._statuses = StatusTracker()
        self._ownership = TaskOwnership()
        self._events: list[e.MemberEvent] = []
        self._state = MemberState.UNSUBSCRIBED
        self._phase = _Phase.IDLE
        self._identity = GroupIdentity(member_id=member_id, instance_id=instance_id)
        self._assignment = AssignmentSnapshot(member_id=member_id)
        self._assigned_partitions: frozenset[TopicPartition] = frozenset()
        self._claimed: frozenset[TaskId] = frozenset()
        self._assigned_once = False
        self._endpoints: EndpointMap = MappingProxyType({})
        self._offsets: Mapping[TaskId, int] = {}
        self._end_offsets: Mapping[TaskId, int] = {}
        self._shutdown_wanted = False
        self._rejoin = False
        self._reason = ""
        # The leader's part.
        self._joined: JoinReply | None = None
        self._counts: Mapping[str, int] | None = None
        self._missing_topics: tuple[InternalTopic, ...] = ()
        self._controller: int | None = None
        self._assignments: Mapping[str, bytes] = {}
        # Times.
        self._in_flight: str | None = None
        self._sent_ms = 0
        self._retry_ms = 0
        self._backoff_ms = RETRY_BACKOFF_MS
        self._heartbeat_ms = 0
        self._probing_ms = NEVER_MS
        self._last_answered_ms: int | None = None
        self._leave_deadline_ms = NEVER_MS
        self._leaving_for_a_while = False

    @property
    def state(self) -> MemberState:
        """The state of the member."""
        return self._state

    @property
    def assignment(self) -> AssignmentSnapshot:
        """The newest snapshot; its member epoch is the generation."""
        return self._assignment

    @property
    def endpoints(self) -> EndpointMap:
        """The endpoints for interactive queries, as last received."""
        return self._endpoints

    @property
    def coordinator(self) -> int | None:
        """The coordinator's node id, None while it is unknown."""
        return self._lookup.node

    @property
    def last_answered_ms(self) -> int | None:
        """Time at which the last answered heartbeat was sent, or a join or sync was answered."""
        return self._last_answered_ms

    @property
    def ownership(self) -> TaskOwnership:
        """The held tasks; read the generation of a commit from it."""
        return self._ownership

    def take_events(self) -> tuple[e.MemberEvent, ...]:
        """Return the events since the last call, in order."""
        taken = tuple(self._events)
        self._events.clear()
        return taken

    # Calls of the application.

    def join(self, now_ms: int) -> None:
        """Start joining: the next poll looks up the coordinator."""
        self._in_flight = None
        self._state = MemberState.JOINING
        self._begin_join(now_ms, "the application started")

    def acknowledge(
        self,
        owned: Mapping[str, Sequence[int]],
        now_ms: int,  # noqa: ARG002
        *,
        standby: Mapping[str, Sequence[int]] | None = None,  # noqa: ARG002
        warmup: Mapping[str, Sequence[int]] | None = None,  # noqa: ARG002
        version: int | None = None,
    ) -> None:
        """Acknowledge an assignment: the application works on exactly these active tasks now.

        Args:
            owned: The active tasks.
            now_ms: The time now.
            standby: Ignored: copies are exclusive to no member, so they need no acknowledgement.
            warmup: Ignored, likewise.
            version: Version of the snapshot that the application acted on; None: the newest.
        """
        if not self._assigned_once:
            return
        # 1. Acknowledgements cross new assignments. One of an older assignment gives nothing back: the application may
        #    be about to open tasks of a snapshot in between. Assigned tasks stay held while they are not open yet.
        if version is not None and version < self._assignment.version:
            return
        active = task_ids(self._assignment.active)
        self._ownership.keep_only(tasks_from(active | task_ids(owned)))
        if task_ids(owned) <= active:
            self._state = MemberState.STABLE
        # 2. The last join claimed tasks that are given back now: the others get them with the next generation.
        if self._claimed - self._ownership.held_since.keys():
            self._request_rejoin("revoked tasks were given back")

    def report_offsets(
        self,
        offsets: Mapping[TaskId, int],
        end_offsets: Mapping[TaskId, int] | None = None,
        *,
        at_once: bool = False,
    ) -> None:
        """Set cumulative changelog offsets of stores and the ends of their changelogs, replacing the last call.

        Joins carry them. `at_once`: the member joins again, because another instance waits for a copy.
        """
        self._offsets = dict(offsets)
        self._end_offsets = dict(end_offsets or {})
        if at_once:
            self._request_rejoin("a copy has caught up")

    def request_shutdown(self, now_ms: int) -> None:  # noqa: ARG002
        """Ask all members of the group to stop; this one receives `ShutdownRequested` as well."""
        self._shutdown_wanted = True
        self._request_rejoin("the application is to stop")

    def leave(self, now_ms: int, *, for_a_while: bool = False) -> None:
        """Leave; the tasks are given up at once.

        Args:
            now_ms: The time now.
            for_a_while: A static member sends nothing: its tasks wait for its return until its session ends.
        """
        if self._state in RESTING or self._state is MemberState.LEAVING:
            return
        # A leave replaces the request in flight: a join may wait for all other members.
        self._in_flight = None
        member = self._identity
        self._lose("left")
        self._identity = member
        self._state = MemberState.LEAVING
        self._leaving_for_a_while = for_a_while
        self._leave_deadline_ms = now_ms + LEAVE_TIMEOUT_MS
        self._retry_ms = now_ms

    def stop(self, error: HeadraceError) -> None:
        """End the membership with an error; also called by the runner."""
        self._lose("fatal")
        self._state = MemberState.FATAL
        self._phase = _Phase.IDLE
        self._in_flight = None
        self._events.append(e.Fatal(error=error))

    # Calls of the runner.

    def poll(self, now_ms: int) -> PollResult:
        """Return the request to send now, if any, and the latest time of the next poll."""
        if self._state in RESTING:
            return PollResult(requests=(), next_poll_ms=NEVER_MS)
        if self._state is MemberState.LEAVING:
            return self._poll_leaving(now_ms)
        # 1. The end of the lease comes first. Commits of a removed member are refused anyway; the lease stops work that
        #    cannot be committed any more.
        if now_ms >= self._lease_end_ms():
            self._in_flight = None
            self._lose_and_join("session-expired", now_ms)
        if self._in_flight is not None:
            return self._wait(self._deadline_ms())
        if self._lookup.node is None:
            return self._look_up(now_ms)
        # 2. A probing rebalance, and everything else that asks for a join, waits for the end of the present rebalance.
        if self._phase is _Phase.IDLE and now_ms >= self._probing_ms:
            self._request_rejoin("warmed-up tasks may move")
        if self._phase is _Phase.IDLE and self._rejoin:
            self._begin_join(max(now_ms, self._retry_ms), self._reason)
        # 3. The session runs while the leader assigns, and between the retries of each step.
        waits = self._phase in {_Phase.IDLE, _Phase.ASSIGN} or self._retry_ms > now_ms
        if waits and self._identity.is_member and now_ms >= self._heartbeat_ms:
            return self._send("heartbeat", classic_heartbeat_request(self._group_id, self._identity), now_ms)
        return self._poll_idle(now_ms) if self._phase is _Phase.IDLE else self._poll_rebalance(now_ms)

    def _poll_idle(self, now_ms: int) -> PollResult:
        look_ms = NEVER_MS if self._counts is None else self._topic_lookup.due_ms
        if look_ms <= now_ms:
            return self._send("look", topics_request(self._all_topics), now_ms, any_node=True)
        return self._wait(min(self._heartbeat_ms, self._probing_ms, look_ms))

    def _poll_rebalance(self, now_ms: int) -> PollResult:
        if self._retry_ms > now_ms:
            return self._wait(min(self._retry_ms, self._heartbeat_ms if self._identity.is_member else NEVER_MS))
        match self._phase:
            case _Phase.JOIN:
                return self._send("join", self._join_request(), now_ms)
            case _Phase.ASSIGN if self._missing_topics:
                return self._send("create", self._create_request(), now_ms, node=self._controller, any_node=True)
            case _Phase.ASSIGN:
                return self._send("partitions", topics_request(self._all_topics), now_ms, any_node=True)
            case _:
                request = sync_group_request(self._group_id, self._identity, PROTOCOL_NAME, self._assignments)
                return self._send("sync", request, now_ms)

    def on_response(self, response: object, now_ms: int) -> None:
        """Apply the answer to the request in flight."""
        kind, self._in_flight = self._in_flight, None
        if kind is None:
            return  # the membership that sent the request has ended
        match response:
            case FindCoordinator() if kind == "lookup":
                code, message = self._lookup.on_response(response, now_ms)
                if code != ErrorCode.none:
                    self._fail(code, message)
            case JoinReply() if kind == "join":
                self._on_join(response, now_ms)
            case Metadata() if kind == "partitions":
                self._on_partitions(response, now_ms)
            case Metadata() if kind == "look":
                self._on_look(response, now_ms)
            case Created() if kind == "create":
                self._on_created(response, now_ms)
            case SyncReply() if kind == "sync":
                self._on_sync(response, now_ms)
            case HeartbeatReply() if kind == "heartbeat":
                self._on_heartbeat(response, now_ms)
            case LeaveReply() if kind == "leave":
                self._finish_leave(confirmed=True)
            case _:
                raise TypeError(f"{type(response).__name__} answers nothing that this member asked")

    def on_failure(self, now_ms: int) -> None:
        """End the request in flight without an answer: the connection broke or the time was up."""
        kind, self._in_flight = self._in_flight, None
        match kind:
            case None:
                return
            case "lookup":
                self._lookup.on_failure(now_ms)
                return
            case "look":
                self._topic_lookup.on_failure(now_ms)
                return
            case "partitions" | "create":
                self._back_off(now_ms)
                return
            case "heartbeat":
                self._back_off(now_ms)
                self._heartbeat_ms = self._retry_ms
            case "sync":
                # The assignment may have been in the lost answer, and only a new join brings one.
                self._begin_join(now_ms, "the sync was not answered")
                self._back_off(now_ms)
            case _:
                self._back_off(now_ms)
        # A join that was not answered may have completed at any time since it was sent, and the session with it.
        if kind in {"join", "sync"} and self._last_answered_ms is not None:
            self._last_answered_ms = max(self._last_answered_ms, self._sent_ms)
        self._lookup.forget()

    # Requests.

    def _send(
        self, kind: str, request: RequestMessage, now_ms: int, *, node: int | None = None, any_node: bool = False
    ) -> PollResult:
        self._in_flight = kind
        self._sent_ms = now_ms
        outgoing = Outgoing(request=request, node=node if any_node else self._lookup.node)
        return PollResult(requests=(outgoing,), next_poll_ms=self._next_poll_ms(self._deadline_ms()))

    def _look_up(self, now_ms: int) -> PollResult:
        if self._lookup.due_ms > now_ms:
            return self._wait(self._lookup.due_ms)
        return self._send("lookup", self._lookup.request(), now_ms, any_node=True)

    def _wait(self, until_ms: int) -> PollResult:
        return PollResult(requests=(), next_poll_ms=self._next_poll_ms(until_ms))

    def _next_poll_ms(self, until_ms: int) -> int:
        return min(until_ms, self._lease_end_ms(), self._leave_deadline_ms)

    def _deadline_ms(self) -> int:
        """Return until when the request in flight may take."""
        # A join is answered when every member has joined, a sync when the leader has synced.
        if self._in_flight in {"join", "sync"}:
            return self._sent_ms + self._rebalance_timeout_ms + JOIN_MARGIN_MS
        if self._in_flight == "heartbeat":
            return self._sent_ms + min(self._session_timeout_ms, REQUEST_TIMEOUT_MS)
        return self._sent_ms + REQUEST_TIMEOUT_MS

    def _lease_end_ms(self) -> int:
        if self._last_answered_ms is None:
            return NEVER_MS
        # The session of a member whose join or sync waits does not run (`ClassicGroupMember.hasSatisfiedHeartbeat`).
        if self._in_flight in {"join", "sync"}:
            return self._sent_ms + self._rebalance_timeout_ms + JOIN_MARGIN_MS + self._session_timeout_ms
        return self._last_answered_ms + self._session_timeout_ms

    def _poll_leaving(self, now_ms: int) -> PollResult:
        if not self._identity.member_id or self._will_return or now_ms >= self._leave_deadline_ms:
            self._finish_leave(confirmed=False)
            return PollResult(requests=(), next_poll_ms=NEVER_MS)
        if self._in_flight is not None:
            return self._wait(self._leave_deadline_ms)
        if self._lookup.node is None:
            return self._look_up(now_ms)
        if self._retry_ms > now_ms:
            return self._wait(self._retry_ms)
        return self._send(
            "leave", leave_group_request(self._group_id, self._identity, "the application was stopped"), now_ms
        )

    def _join_request(self) -> RequestMessage:
        held = self._ownership.held_since
        self._claimed = frozenset(held)
        self._rejoin = False
        report = TaskReport(
            owned=OwnedTasks(
                active=self._ownership.tasks, standby=self._assignment.standby, warmup=self._assignment.warmup
            ),
            task_offsets=self._offsets,
            task_end_offsets=self._end_offsets,
            shutdown_application=self._shutdown_wanted,
        )
        subscription = Subscription(
            topics=self._sources,
            user_data=self._protocol.encode_report(report),
            owned_partitions=tuple(sorted(self._partitions(held, self._assigned_partitions))),
            generation_id=self._identity.generation,
            rack_id=self._rack_id,
        )
        return join_group_request(
            self._group_id,
            self._identity,
            ((PROTOCOL_NAME, encode_subscription(subscription)),),
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            reason=self._reason,
        )

    def _create_request(self) -> RequestMessage:
        request = m.create_topics_request
        return request.CreateTopicsRequest(
            topics=tuple(
                request.CreatableTopic(
                    name=TopicName(topic.name),
                    num_partitions=i32(topic.partitions),
                    # -1 is the broker's default (KIP-464, Kafka 2.4).
                    replication_factor=i16(topic.replication_factor or -1),
                    assignments=(),
                    configs=tuple(
                        request.CreatableTopicConfig(name=key, value=value) for key, value in sorted(topic.configs)
                    ),
                )
                for topic in self._missing_topics
            ),
            timeout=from_ms(REQUEST_TIMEOUT_MS),
        )

    def _partitions(
        self, tasks: Mapping[TaskId, int] | frozenset[TaskId], known: frozenset[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return the partitions of tasks; a topic may have fewer partitions than its subtopology has tasks."""
        wanted = {(topic, partition) for name, partition in tasks for topic in self._topics_of.get(name, ())}
        return known & wanted

    # The steps of a rebalance.

    def _request_rejoin(self, reason: str) -> None:
        if self._state in RESTING or self._state is MemberState.LEAVING:
            return
        self._rejoin = True
        self._reason = reason

    def _begin_join(self, at_ms: int, reason: str) -> None:
        self._phase = _Phase.JOIN
        self._reason = reason
        self._rejoin = False
        self._probing_ms = NEVER_MS
        self._retry_ms = at_ms

    def _on_join(self, reply: JoinReply, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._take_generation(reply, now_ms)
        # The coordinator gives out an id and requires it in a second join, so that a client that repeats a first join
        # leaves no members behind (KIP-394).
        elif code == ErrorCode.member_id_required:
            self._identify(NO_GENERATION, reply.member_id)
            self._retry_ms = now_ms
        elif code in _FENCED:
            self._on_fenced(code, now_ms)
            self._back_off(now_ms)
        elif code == ErrorCode.rebalance_in_progress or is_retriable(code):
            self._on_retriable(code, now_ms, to_ms(reply.throttle_time))
        else:
            self._fail(code)

    def _take_generation(self, reply: JoinReply, now_ms: int) -> None:
        self._backoff_ms = RETRY_BACKOFF_MS
        generation, former = int(reply.generation_id), self._ownership.generation
        self._identify(generation, reply.member_id)
        if (reply.protocol_name or "") != PROTOCOL_NAME:
            self._fail(ErrorCode.inconsistent_group_protocol)
            return
        # 1. The session begins anew when the join is answered: it may have waited for longer than the session.
        self._last_answered_ms = now_ms
        self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
        self._retry_ms = now_ms
        self._shutdown_wanted = False
        # 2. A static member is not removed when it misses a generation (KIP-345), and what it was assigned after its
        #    last join was not claimed in that one: another member may have had it. A dynamic member can skip a
        #    generation only if the answer to a join was lost, in which it claimed everything. A lower generation means
        #    that the coordinator lost its data.
        skipped = former is not None and self._identity.instance_id is not None and generation > former + 1
        if former is not None and (generation < former or skipped):
            self._on_fenced(ErrorCode.illegal_generation, now_ms)
            return
        # 3. From now on the coordinator accepts commits with this generation only. The tasks are those of the join.
        self._ownership.on_generation(self._identity.generation)
        before = self._assignment
        self._assignment = AssignmentSnapshot(
            member_id=self._identity.member_id,
            member_epoch=self._identity.generation,
            active=before.active,
            standby=before.standby,
            warmup=before.warmup,
            status=before.status,
            version=before.version,
            held_since=self._ownership.held_since,
        )
        if self._assigned_once and before.member_epoch != self._assignment.member_epoch:
            self._events.append(_change(before.tasks, self._assignment))
        # 4. The leader assigns first; a follower syncs at once, and stops watching the partitions.
        self._joined = None
        self._assignments = {}
        self._missing_topics = ()
        if reply.leader == reply.member_id and reply.members:
            self._joined = reply
            self._phase = _Phase.ASSIGN
        else:
            self._counts = None
            self._phase = _Phase.SYNC

    def _on_partitions(self, response: Metadata, now_ms: int) -> None:
        """Assign as the leader, now that the numbers of partitions are known."""
        joined = self._joined
        if joined is None or self._phase is not _Phase.ASSIGN:
            return
        counts = self._counted(response)
        controller = int(response.controller_id)
        self._controller = controller if controller >= 0 else None
        plan = self._protocol.assign(_subscriptions(joined), counts)
        if plan.missing_topics:
            self._missing_topics = plan.missing_topics
            self._retry_ms = now_ms
            return
        self._counts = counts
        self._topic_lookup.on_success(now_ms, missing=len(counts) < len(self._all_topics))
        self._phase = _Phase.SYNC
        self._retry_ms = now_ms
        if joined.skip_assignment:
            return  # a static leader returned: the coordinator keeps the group's assignment (KIP-814)
        existing = frozenset((name, number) for name, count in counts.items() for number in range(count))
        self._assignments = {
            member: encode_assignment(
                Assignment(
                    partitions=tuple(sorted(self._partitions(task_ids(plan.active.get(member, {})), existing))),
                    user_data=data,
                )
            )
            for member, data in plan.user_data.items()
        }

    def _on_created(self, response: Created, now_ms: int) -> None:
        self._missing_topics = ()
        for topic in response.topics:
            code = topic.error_code
            # TOPIC_ALREADY_EXISTS: another leader, or this one in a request whose answer was lost, created the topic.
            if code in {ErrorCode.none, ErrorCode.topic_already_exists} or is_retriable(code):
                continue
            self.stop(_creation_error(code, topic.error_message or "", topic=str(topic.name), group_id=self._group_id))
            return
        # Brokers learn of a new topic a moment after its creation, and a refused creation is repeated later.
        self._back_off(now_ms, to_ms(response.throttle_time))

    def _on_sync(self, reply: SyncReply, now_ms: int) -> None:
        code = reply.error_code
        if code == ErrorCode.none:
            self._backoff_ms = RETRY_BACKOFF_MS
            self._last_answered_ms = now_ms
            self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
            self._phase = _Phase.IDLE
            self._retry_ms = now_ms
            self._take_assignment(bytes(reply.assignment), now_ms)
        elif code == ErrorCode.rebalance_in_progress:
            self._begin_join(now_ms, "the group began another rebalance")
        elif code in _FENCED:
            self._on_fenced(code, now_ms)
        elif is_retriable(code):
            self._begin_join(now_ms, f"the sync was refused with {kafka_name(code)}")
            self._on_retriable(code, now_ms, to_ms(reply.throttle_time))
        else:
            self._fail(code)

    def _take_assignment(self, data: bytes, now_ms: int) -> None:
        try:
            given = decode_assignment(data)
            # A leader that left this member out assigned nothing to it.
            assigned = TaskAssignment() if not given.user_data else self._protocol.decode_assignment(given.user_data)
        except MalformedUserData as malformed:
            self.stop(_malformed(malformed, self._group_id))
            return
        before, tasks = self._assignment, assigned.tasks
        tasks_changed = tasks != before.tasks
        self._ownership.on_assigned(task_ids(tasks.active))
        self._assigned_partitions |= frozenset(given.partitions)
        self._assignment = AssignmentSnapshot(
            member_id=before.member_id,
            member_epoch=before.member_epoch,
            active=tasks_of(tasks.active),
            standby=tasks_of(tasks.standby),
            warmup=tasks_of(tasks.warmup),
            status=assigned.status,
            version=before.version + 1 if tasks_changed else before.version,
            held_since=self._ownership.held_since,
        )
        if not self._assigned_once:
            self._assigned_once = True
            self._state = MemberState.RECONCILING
            self._events.append(e.Assigned(assignment=self._assignment))
        elif tasks_changed:
            self._state = MemberState.RECONCILING
            self._events.append(_change(before.tasks, self._assignment))
        self._events.extend(self._statuses.take(assigned.status))
        if assigned.endpoints != self._endpoints:
            self._endpoints = assigned.endpoints
            self._events.append(e.EndpointsChanged(endpoints=assigned.endpoints))
        self._probing_ms = now_ms + self._probing_interval_ms if assigned.follow_up else NEVER_MS

    def _on_heartbeat(self, reply: HeartbeatReply, now_ms: int) -> None:
        code = reply.error_code
        self._heartbeat_ms = now_ms + self._heartbeat_interval_ms
        if code == ErrorCode.none:
            self._backoff_ms = RETRY_BACKOFF_MS
            self._last_answered_ms = self._sent_ms
        # The answer keeps the session as well (`ClassicGroup`: PREPARING_REBALANCE restarts the timer). The other
        # members wait for this one, so the join follows at once, whatever the application does.
        elif code == ErrorCode.rebalance_in_progress:
            self._last_answered_ms = self._sent_ms
            self._begin_join(now_ms, "the group is rebalancing")
        elif code in _FENCED:
            self._on_fenced(code, now_ms)
        elif is_retriable(code):
            self._on_retriable(code, now_ms, to_ms(reply.throttle_time))
            self._heartbeat_ms = self._retry_ms
        else:
            self._fail(code)

    def _on_look(self, response: Metadata, now_ms: int) -> None:
        counts = self._counted(response)
        self._topic_lookup.on_success(now_ms, missing=len(counts) < len(self._all_topics))
        if self._counts is not None and counts != self._counts:
            self._counts = counts
            self._request_rejoin("the topics' partitions changed")

    def _counted(self, response: Metadata) -> Mapping[str, int]:
        return {name: count for name, count in partition_counts(response).items() if name in self._all_topics}

    # Losses.

    def _on_fenced(self, code: ErrorCode, now_ms: int) -> None:
        if self._assigned_once:
            self._events.append(e.Fenced(kafka_name=kafka_name(code), message=""))
        # After ILLEGAL_GENERATION the coordinator still knows the member; an unknown id must be requested anew.
        forget_id = code == ErrorCode.unknown_member_id
        self._lose_and_join("fenced", now_ms, member_id="" if forget_id else None)

    def _lose_and_join(self, reason: e.LostReason, now_ms: int, *, member_id: str | None = None) -> None:
        self._lose(reason)
        self._identify(NO_GENERATION, self._identity.member_id if member_id is None else member_id)
        self._state = MemberState.JOINING
        self._begin_join(now_ms, f"the tasks were lost: {reason}")

    def _lose(self, reason: e.LostReason) -> None:
        was_assigned, self._assigned_once = self._assigned_once, False
        self._statuses.forget()
        self._ownership.lose_all()
        self._claimed = frozenset()
        self._assigned_partitions = frozenset()
        self._joined = None
        self._counts = None
        self._last_answered_ms = None
        self._probing_ms = NEVER_MS
        self._rejoin = False
        self._phase = _Phase.IDLE
        self._assignment = AssignmentSnapshot(member_id=self._identity.member_id, version=self._assignment.version + 1)
        if was_assigned:
            self._events.append(e.Lost(reason=reason))

    def _identify(self, generation: int, member_id: str) -> None:
        self._identity = GroupIdentity(
            member_id=member_id, generation=generation, instance_id=self._identity.instance_id
        )

    def _on_retriable(self, code: ErrorCode, now_ms: int, throttle_ms: int) -> None:
        self._back_off(now_ms, throttle_ms)
        if code in COORDINATOR_GONE:
            self._lookup.forget()

    def _back_off(self, now_ms: int, throttle_ms: int = 0) -> None:
        pause_ms = max(1, round(self._backoff_ms * (1.0 - 0.2 * self._chance())), throttle_ms)
        self._retry_ms = now_ms + pause_ms
        self._backoff_ms = min(self._backoff_ms * 2, RETRY_BACKOFF_MAX_MS)

    def _fail(self, code: ErrorCode, message: str = "") -> None:
        if self._state is MemberState.LEAVING:
            self._finish_leave(confirmed=False)
            return
        if code == ErrorCode.fenced_instance_id and self._assigned_once:
            self._events.append(e.Fenced(kafka_name=kafka_name(code), message=message))
        self.stop(self._refusal(code, message))

    def _refusal(self, code: ErrorCode, message: str) -> HeadraceError:
        """Return the error for a final code; those of consumers would name their settings."""
        facts = {"kafka_code": int(code), "kafka_name": kafka_name(code), "kafka_message": message, "retriable": False}
        match code:
            case ErrorCode.inconsistent_group_protocol:
                return BrokerError(
                    "group-kind",
                    f"The group {self._group_id} has members of another kind: consumers, or members of a streams group",
                    "Use another name for the application, or stop these members first.",
                    **facts,
                    api="JoinGroup",
                    group_id=self._group_id,
                )
            case ErrorCode.invalid_session_timeout:
                return BrokerError(
                    "heartbeat-refused",
                    f"The coordinator of {self._group_id} refused session.timeout.ms={self._session_timeout_ms} "
                    "(INVALID_SESSION_TIMEOUT)",
                    "Set session.timeout.ms between group.min.session.timeout.ms and group.max.session.timeout.ms of "
                    "the brokers, by default 6,000 to 1,800,000.",
                    **facts,
                    api="JoinGroup",
                    group_id=self._group_id,
                )
        instance_id = self._identity.instance_id
        return group_error(code, message, group_id=self._group_id, api="JoinGroup", instance_id=instance_id)

    @property
    def _will_return(self) -> bool:
        return self._leaving_for_a_while and self._identity.instance_id is not None

    def _finish_leave(self, *, confirmed: bool) -> None:
        self._state = MemberState.UNSUBSCRIBED
        self._in_flight = None
        self._leave_deadline_ms = NEVER_MS
        self._events.append(e.Left(confirmed=confirmed, will_return=self._will_return))
        self._identify(NO_GENERATION, "")


_FENCED = frozenset({ErrorCode.unknown_member_id, ErrorCode.illegal_generation})


def _source_topics(subtopology: Subtopology) -> tuple[str, ...]:
    return (*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics))


def _subscriptions(joined: JoinReply) -> Mapping[str, Subscription]:
    found: dict[str, Subscription] = {}
    for member in joined.members:
        try:
            found[member.member_id] = decode_subscription(bytes(member.metadata), instance_id=member.group_instance_id)
        except MalformedUserData:
            # Left out, so it gets no tasks: one stranger in the group must not end the other members.
            continue
    return found


def _change(before: OwnedTasks, assignment: AssignmentSnapshot) -> e.AssignmentChanged:
    return e.AssignmentChanged(
        assignment=assignment,
        added=difference(assignment.active, before.active),
        revoked=difference(before.active, assignment.active),
        standby_added=difference(assignment.standby, before.standby),
        standby_removed=difference(before.standby, assignment.standby),
        warmup_added=difference(assignment.warmup, before.warmup),
        warmup_removed=difference(before.warmup, assignment.warmup),
    )


def _creation_error(code: ErrorCode, message: str, *, topic: str, group_id: str) -> HeadraceError:
    not_allowed = code in {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed}
    return BrokerError(
        "not-authorized" if not_allowed else "heartbeat-refused",
        f"Creation of the internal topic {topic} failed for {group_id} ({kafka_name(code)}): "
        f"{message or 'no reason given'}",
        "Grant CREATE on the internal topics, or create them yourself with the partitions of `describe()`."
        if not_allowed
        else "Correct the cause, or create the topic yourself with the partitions of `describe()`.",
        kafka_code=int(code),
        kafka_name=kafka_name(code),
        retriable=False,
        api="CreateTopics",
        group_id=group_id,
        why=message,
    )


def _malformed(malformed: MalformedUserData, group_id: str) -> HeadraceError:
    return BrokerError(
        "heartbeat-refused",
        f"The leader of {group_id} sent an assignment that cannot be decoded: {malformed}",
        "Run the same version of Headrace in all members of the group.",
        kafka_code=int(ErrorCode.inconsistent_group_protocol),
        kafka_name=kafka_name(ErrorCode.inconsistent_group_protocol),
        retriable=False,
        api="SyncGroup",
        group_id=group_id,
        why=str(malformed),
    )
