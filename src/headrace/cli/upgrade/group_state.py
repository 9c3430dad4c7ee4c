"""The group as an upgrade finds it: its type, who is in it, and its positions. Everything over Kafka's protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.group_view import AWAY_EPOCH, PartitionLag, lag_by_partition
from headrace.cli.upgrade.saved_state import SavedPosition, SavedSubtopology, SaveFile
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.client.admin import Admin
    from headrace.client.admin_results import CommittedOffset, StreamsGroupDescription, StreamsMemberDescription
    from headrace.client.cluster_metadata import TopicMetadata

__all__ = ["GroupState", "read_group_state"]

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """`kind`: streams, another type in lower case, or "" when there is no such group."""

    group_id: str
    cluster_id: str | None
    kind: str
    state: str
    described: StreamsGroupDescription | None
    positions: Mapping[TopicPartition, CommittedOffset]
    lags: Mapping[TopicPartition, PartitionLag]
    topics: Mapping[str, TopicMetadata]

    @property
    def exists(self) -> bool:
        return bool(self.kind)

    @property
    def blocks_members(self) -> bool:
        """Whether it must be deleted before a streams member with another topology may join.

        An empty classic group gives way by itself; an empty consumer group (KIP-848) does not.
        """
        # Kafka converts an empty classic group when a streams or consumer member joins (GroupMetadataManager: it writes
        # a tombstone of the classic group first); any other type answers GROUP_ID_NOT_FOUND to a streams member.
        return self.exists and self.kind != "classic"

    @property
    def source_topics(self) -> frozenset[str]:
        return frozenset(topic for each in self._saved_topology() for topic in each.source_topics)

    @property
    def repartition_topics(self) -> frozenset[str]:
        return frozenset(topic for each in self._saved_topology() for topic in each.repartition_topics)

    @property
    def changelog_topics(self) -> frozenset[str]:
        return frozenset(topic for each in self._saved_topology() for topic in each.changelog_topics)

    def check_empty(self) -> None:
        """Check that the group is empty. Raises BrokerError `group-not-empty`, naming who is there."""
        if not self.exists or self.state in ("Empty", "Dead"):
            return
        members = self.described.members if self.described is not None else ()
        # Members are named by client and host, because the next step of the operator is to find and stop their
        # processes.
        who = ", ".join(_member_text(member) for member in members)
        raise BrokerError(
            "group-not-empty",
            f"the {self.kind} group {self.group_id} is {self.state}: it has {_count(len(members))}"
            + (f": {who}" if who else ""),
            "stop all of them first; one that was killed is gone at the end of its session (--wait SECONDS waits)",
            group_id=self.group_id,
        )

    def saved(self, *, at: str) -> SaveFile:
        """Return the content of the save file."""
        group = self.described
        return SaveFile(
            group=self.group_id,
            cluster_id=self.cluster_id,
            saved_at=at,
            finished_at=None,
            group_epoch=0 if group is None else group.group_epoch,
            topology_epoch=None if group is None or group.topology is None else group.topology.epoch,
            topology=self._saved_topology(),
            positions=tuple(self._position(key, self.positions[key]) for key in sorted(self.positions)),
        )

    def _position(self, key: TopicPartition, committed: CommittedOffset) -> SavedPosition:
        topic, partition = key
        # Repartition before source: the subtopology that reads a repartition topic may list it among its sources.
        kinds = (("repartition", self.repartition_topics), ("source", self.source_topics))
        known = self.topics.get(topic)
        return SavedPosition(
            topic=topic,
            topic_id=None if known is None or known.topic_id is None else str(known.topic_id),
            partition=partition,
            offset=committed.offset,
            leader_epoch=committed.leader_epoch,
            metadata=committed.metadata,
            kind=next((kind for kind, topics in kinds if topic in topics), "other"),
        )

    def _saved_topology(self) -> tuple[SavedSubtopology, ...]:
        if self.described is None or self.described.topology is None:
            return ()
        return tuple(
            SavedSubtopology(
                subtopology_id=each.subtopology_id,
                source_topics=each.source_topics,
                repartition_topics=tuple(topic.name for topic in each.repartition_source_topics),
                changelog_topics=tuple(topic.name for topic in each.state_changelog_topics),
            )
            for each in self.described.topology.subtopologies
        )


def _count(members: int) -> str:
    return "members" if not members else f"{members} member" + ("s" if members > 1 else "")


def _member_text(member: StreamsMemberDescription) -> str:
    name = f"{member.client_id} ({member.client_host.removeprefix('/')})"
    return f"{name}, away for a while" if member.member_epoch == AWAY_EPOCH else name


def read_group_state(admin: Admin, group_id: str) -> GroupState:
    """Read the state of a group, and wait for positions of open transactions.

    Raises BrokerError `offsets-unstable` if they stay open.
    """
    listed = next((group for group in admin.list_groups() if group.group_id == group_id), None)
    kind = "" if listed is None else listed.group_type.lower()
    # The list and the description are two requests; where both know the state, the later one counts.
    described = _describe(admin, group_id) if kind in ("streams", "classic") else None
    lags = {} if described is None else lag_by_partition(admin, described)
    return GroupState(
        group_id=group_id,
        cluster_id=admin.client.metadata((), refresh=True).cluster_id,
        kind=kind,
        state="" if listed is None else listed.state if described is None else described.state,
        described=described,
        positions=_stable_positions(admin, group_id, lags) if kind else {},
        lags=lags,
        topics=admin.list_topics(include_internal=True),
    )


def _describe(admin: Admin, group_id: str) -> StreamsGroupDescription | None:
    return admin.try_describe_streams_groups([group_id]).done.get(group_id)


def _stable_positions(
    admin: Admin, group_id: str, inputs: Iterable[TopicPartition]
) -> dict[TopicPartition, CommittedOffset]:
    """Asked for all, a broker passes over positions that only an open transaction has: the inputs are named first."""
    named = admin.list_group_offsets(group_id, list(inputs), require_stable=True)
    return {**named, **admin.list_group_offsets(group_id, require_stable=True)}


def no_such_group(admin: Admin, group_id: str) -> BrokerError:
    """group-missing with a near name, or group-kind."""
    return unknown_group_error(group_id, admin.list_groups(), admin.client.bootstrap_servers)
