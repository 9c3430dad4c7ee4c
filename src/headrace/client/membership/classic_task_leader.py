"""Sharing of tasks in a classic group: what members report, and the leader's part of a rebalance. Pure.

The leader looks up the partitions of all topics of the topology, creates missing internal topics, and lets a
`TaskProtocol` assign. Between rebalances it repeats the lookup at `metadata.max.age.ms`, and begins a rebalance when
the numbers of partitions change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from kio.schema.types import TopicName
from kio.static.primitive import i16, i32

from headrace.assignors.assignor import Assignment, Subscription
from headrace.assignors.consumer_protocol import MalformedUserData, decode_subscription, encode_assignment
from headrace.client.membership.assignment import OwnedTasks, TaskId, task_ids
from headrace.client.membership.endpoints import EndpointMap
from headrace.client.membership.events import Status
from headrace.client.membership.group_events import TopicPartition
from headrace.client.membership.request_manager import NEVER_MS, TopicLookup, partition_counts, topics_request
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.errors import BrokerError, HeadraceError
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.framing import RequestMessage
from headrace.protocol.kio_units import from_ms

__all__ = [
    "PROTOCOL_NAME",
    "REQUEST_TIMEOUT_MS",
    "ClassicTaskLeader",
    "TaskAssignment",
    "TaskPlan",
    "TaskProtocol",
    "TaskReport",
    "TaskTopics",
]

PROTOCOL_NAME = "headrace-streams"
"""The only protocol of the group: a consumer's assignor would divide partitions, not tasks."""

REQUEST_TIMEOUT_MS = 30_000

JoinReply = m.join_group_response.JoinGroupResponse
Metadata = m.metadata_response.MetadataResponse
Created = m.create_topics_response.CreateTopicsResponse


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


class TaskTopics:
    """Topics of a topology, by subtopology. Immutable."""

    def __init__(self, topology: Topology) -> None:
        self._by_subtopology = {each.subtopology_id: _source_topics(each) for each in topology.subtopologies}
        self.sources = tuple(sorted({name for names in self._by_subtopology.values() for name in names}))
        self.all = frozenset(self.sources) | {topic.name for topic in topology.internal_topics}

    def partitions_of(self, tasks: AbstractSet[TaskId], existing: frozenset[TopicPartition]) -> list[TopicPartition]:
        """Return the source partitions of tasks, sorted; a topic may have fewer partitions than there are tasks."""
        wanted = {(topic, number) for name, number in tasks for topic in self._by_subtopology.get(name, ())}
        return sorted(existing & wanted)


class ClassicTaskLeader:
    """The leader's part of a member. Mutable.

    `begin` starts an assignment. `request` is sent and answered until `assign` returns the assignments of all members.
    """

    def __init__(self, group_id: str, protocol: TaskProtocol, topics: TaskTopics, *, metadata_max_age_ms: int) -> None:
        self._group_id = group_id
        self._protocol = protocol
        self._topics = topics
        self._lookup = TopicLookup(metadata_max_age_ms)
        self._joined: JoinReply | None = None
        self._counts: Mapping[str, int] | None = None
        self._missing_topics: tuple[InternalTopic, ...] = ()
        self._controller: int | None = None

    @property
    def look_ms(self) -> int:
        """Time of the next look at the numbers of partitions; never for a follower."""
        return NEVER_MS if self._counts is None else self._lookup.due_ms

    @property
    def creates_topics(self) -> bool:
        """Whether internal topics have to be created before tasks can be assigned."""
        return bool(self._missing_topics)

    @property
    def controller(self) -> int | None:
        """Node id of the controller, which creates topics; None: any broker."""
        return self._controller

    def begin(self, joined: JoinReply) -> None:
        """Begin to assign to the members of a generation. The partitions of the last generation stay watched."""
        self._joined = joined
        self._missing_topics = ()

    def follow(self) -> None:
        """Stop watching partitions: another member is the leader."""
        self._joined = None
        self._missing_topics = ()
        self._counts = None

    def partitions_request(self) -> RequestMessage:
        """Return the request for the numbers of partitions."""
        return topics_request(self._topics.all)

    def create_request(self) -> RequestMessage:
        """Return the request that creates the missing internal topics."""
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

    def assign(self, response: Metadata, now_ms: int) -> Mapping[str, bytes] | None:
        """Return member id → encoded assignment, now that the numbers of partitions are known.

        Returns:
            None if internal topics are missing: create them, and ask for the partitions again. Without entries if the
            coordinator keeps the group's assignment.
        """
        joined = self._joined
        assert joined is not None, "only the leader assigns"
        counts = self._counted(response)
        controller = int(response.controller_id)
        self._controller = controller if controller >= 0 else None
        plan = self._protocol.assign(_subscriptions(joined), counts)
        if plan.missing_topics:
            self._missing_topics = plan.missing_topics
            return None
        self._counts = counts
        self._lookup.on_success(now_ms, missing=len(counts) < len(self._topics.all))
        if joined.skip_assignment:
            return {}  # a static leader returned: the coordinator keeps the group's assignment (KIP-814)
        existing = frozenset((name, number) for name, count in counts.items() for number in range(count))
        return {
            member: encode_assignment(
                Assignment(
                    partitions=tuple(self._topics.partitions_of(task_ids(plan.active.get(member, {})), existing)),
                    user_data=data,
                )
            )
            for member, data in plan.user_data.items()
        }

    def on_created(self, response: Created) -> HeadraceError | None:
        """Apply the answer to `create_request`; return the error of a topic that cannot be created."""
        self._missing_topics = ()
        for topic in response.topics:
            code = topic.error_code
            # TOPIC_ALREADY_EXISTS: another leader, or this one in a request whose answer was lost, created the topic.
            if code in {ErrorCode.none, ErrorCode.topic_already_exists} or is_retriable(code):
                continue
            return _creation_error(code, topic.error_message or "", topic=str(topic.name), group_id=self._group_id)
        return None

    def on_look(self, response: Metadata, now_ms: int) -> bool:
        """Apply the answer to a look between rebalances; return whether the numbers of partitions changed."""
        counts = self._counted(response)
        self._lookup.on_success(now_ms, missing=len(counts) < len(self._topics.all))
        if self._counts is None or counts == self._counts:
            return False
        self._counts = counts
        return True

    def on_look_failure(self, now_ms: int) -> None:
        """Note that a look at the partitions was not answered."""
        self._lookup.on_failure(now_ms)

    def _counted(self, response: Metadata) -> Mapping[str, int]:
        return {name: count for name, count in partition_counts(response).items() if name in self._topics.all}


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


def _subscriptions(joined: JoinReply) -> Mapping[str, Subscription]:
    found: dict[str, Subscription] = {}
    for member in joined.members:
        try:
            found[member.member_id] = decode_subscription(bytes(member.metadata), instance_id=member.group_instance_id)
        except MalformedUserData:
            # Left out, so it gets no tasks: one stranger in the group must not end the other members.
            continue
    return found


def _source_topics(subtopology: Subtopology) -> tuple[str, ...]:
    return (*subtopology.source_topics, *(topic.name for topic in subtopology.repartition_source_topics))
