"""Results of `Admin`: frozen values in plain types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from headrace.client.membership.assignment import Tasks, tasks_of
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.errors import BrokerError
from headrace.protocol import messages as m

__all__ = [
    "CommittedOffset",
    "ConfigEntry",
    "ConfigSynonym",
    "FeatureDescription",
    "GroupListing",
    "OffsetAndTimestamp",
    "Outcomes",
    "StreamsGroupDescription",
    "StreamsMemberAssignment",
    "StreamsMemberDescription",
    "read_streams_group",
]


Key = TypeVar("Key")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes(Generic[Key, Value]):
    """Outcomes of a call for several groups, topics or partitions: each key is in one of `done` and `errors`."""

    done: Mapping[Key, Value]
    errors: Mapping[Key, BrokerError]

    def all(self) -> dict[Key, Value]:
        """Return `done` if there are no errors; raise the first error otherwise."""
        # The first error stands for all: the plain forms of `Admin` fail as a whole.
        for error in self.errors.values():
            raise error
        return dict(self.done)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset: the next record to read. Leader epoch -1 if none was committed."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAndTimestamp:
    """An offset of a log; timestamp -1 if none was requested."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupListing:
    """One group; `state` and `group_type` in the broker's spelling ("Stable", "streams")."""

    group_id: str
    group_type: str
    state: str
    protocol_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigSynonym:
    """A source that has a value for a setting, with the setting's name there."""

    name: str
    value: str | None
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting; `source` is Kafka's number (1 topic, 2-4 broker, 5 default, 8 group)."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    synonyms: tuple[ConfigSynonym, ...] = ()
    documentation: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureDescription:
    """Supported levels of a feature, the finalised one (0: off), and the epoch of finalised features (-1: not
    reported).
    """

    name: str
    lowest: int
    highest: int
    level: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMemberAssignment:
    """Tasks of the three roles by subtopology id."""

    active: Tasks
    standby: Tasks
    warmup: Tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsMemberDescription:
    """One member with its present (`assignment`) and its future tasks (`target_assignment`)."""

    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    topology_epoch: int
    process_id: str
    user_endpoint: tuple[str, int] | None
    client_tags: Mapping[str, str]
    assignment: StreamsMemberAssignment
    target_assignment: StreamsMemberAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupDescription:
    """A group whose members run streams; `topology` is None until a member sent one.

    `group_type` is streams (KIP-1071), or classic: epochs are -1 then, and the target is the assignment.
    """

    group_id: str
    state: str
    group_epoch: int
    assignment_epoch: int
    topology: Topology | None
    members: tuple[StreamsMemberDescription, ...]
    group_type: str = "streams"


def read_streams_group(group: m.streams_group_describe_response.DescribedGroup) -> StreamsGroupDescription:
    """Return a DescribedGroup of StreamsGroupDescribe as plain values, members sorted by id."""
    return StreamsGroupDescription(
        group_id=str(group.group_id),
        state=group.group_state,
        group_epoch=int(group.group_epoch),
        assignment_epoch=int(group.assignment_epoch),
        topology=_topology(group.topology),
        members=tuple(_member(member) for member in sorted(group.members, key=lambda member: str(member.member_id))),
    )


def _member(member: m.streams_group_describe_response.Member) -> StreamsMemberDescription:
    endpoint = member.user_endpoint
    return StreamsMemberDescription(
        member_id=member.member_id,
        member_epoch=int(member.member_epoch),
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        # Lower than the group's for a member with a stale topology, which still has tasks (status STALE_TOPOLOGY).
        topology_epoch=int(member.topology_epoch),
        process_id=member.process_id,
        user_endpoint=None if endpoint is None else (endpoint.host, int(endpoint.port)),
        # Rack-aware assignment uses these, not `rack_id` (KIP-1071).
        client_tags={tag.key: tag.value for tag in member.client_tags},
        assignment=_assignment(member.assignment),
        target_assignment=_assignment(member.target_assignment),
    )


def _assignment(assignment: m.streams_group_describe_response.Assignment) -> StreamsMemberAssignment:
    return StreamsMemberAssignment(
        active=_tasks(assignment.active_tasks),
        standby=_tasks(assignment.standby_tasks),
        warmup=_tasks(assignment.warmup_tasks),
    )


def _tasks(task_ids: Iterable[m.streams_group_describe_response.TaskIds]) -> Tasks:
    return tasks_of({ids.subtopology_id: [int(p) for p in ids.partitions] for ids in task_ids})


def _topology(topology: m.streams_group_describe_response.Topology | None) -> Topology | None:
    if topology is None:
        return None
    return Topology(
        epoch=int(topology.epoch),
        subtopologies=tuple(
            Subtopology(
                subtopology_id=subtopology.subtopology_id,
                source_topics=tuple(str(name) for name in subtopology.source_topics),
                repartition_source_topics=tuple(_internal(topic) for topic in subtopology.repartition_source_topics),
                repartition_sink_topics=tuple(str(name) for name in subtopology.repartition_sink_topics),
                state_changelog_topics=tuple(_internal(topic) for topic in subtopology.state_changelog_topics),
            )
            # Null while the coordinator has no configured topology, as with missing source topics.
            for subtopology in topology.subtopologies or ()
        ),
    )


def _internal(topic: m.streams_group_describe_response.TopicInfo) -> InternalTopic:
    return InternalTopic(
        name=str(topic.name),
        # 0: derived by the coordinator, and not known yet (see `Topology`).
        partitions=int(topic.partitions),
        replication_factor=int(topic.replication_factor),
        configs=tuple((config.key, config.value) for config in topic.topic_configs),
    )
