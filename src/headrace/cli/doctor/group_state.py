"""Present state of one group, read once: positions, transactions that hold readers back, obstacles of a streams group.

Events and logs show what happened; a hot partition, an open transaction and a group that is NotReady show in the state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.group_view import find_obstacles
from headrace.client.admin_transactions import list_open_transactions
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["GroupState", "OpenTransaction", "PartitionState", "read_group_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Ends of one partition and the group's position in it.

    Attributes:
        topic: Its topic.
        partition: Its number.
        log_start: First offset that can be read.
        stable_end: Last stable offset: readers of committed data stop here.
        end: High watermark.
        committed: Next offset the group reads.
    """

    topic: str
    partition: int
    log_start: int
    stable_end: int
    end: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """A transaction in progress on a partition that the group reads; `begun_ms` is None if it is unknown."""

    transactional_id: str
    begun_ms: int | None
    timeout_ms: int
    partitions: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState:
    """State of a group at one time.

    Attributes:
        at_ms: The time.
        group_type: classic, consumer, streams, or "" for a group that does not exist.
        state: The coordinator's name of the state.
        partitions: Partitions with a committed position.
        transactions: Transactions in progress on those partitions.
        obstacles: Why a streams group has no tasks, with the remedy of each.
    """

    at_ms: int
    group_type: str = ""
    state: str = ""
    partitions: tuple[PartitionState, ...] = ()
    transactions: tuple[OpenTransaction, ...] = ()
    obstacles: tuple[tuple[str, str], ...] = ()


def read_group_state(admin: Admin, group_id: str, *, now_ms: int) -> GroupState:
    """Read the state of a group. A part that the cluster refuses (older brokers, access rules) is empty.

    Args:
        admin: Access to the cluster.
        group_id: The group.
        now_ms: Present time.

    Raises:
        BrokerError: The groups cannot be listed.
    """
    listing = next((group for group in admin.list_groups() if group.group_id == group_id), None)
    if listing is None:
        return GroupState(at_ms=now_ms)
    partitions = _partitions(admin, group_id)
    return GroupState(
        at_ms=now_ms,
        group_type=str(listing.group_type).lower(),
        state=str(listing.state),
        partitions=partitions,
        transactions=_transactions(admin, {(each.topic, each.partition) for each in partitions}),
        obstacles=_obstacles(admin, group_id),
    )


def _partitions(admin: Admin, group_id: str) -> tuple[PartitionState, ...]:
    try:
        committed = admin.committed_offsets(group_id)
        present = admin.describe_topics({topic for topic, _ in committed})
        known = [key for key in committed if key[0] in present and key[1] < len(present[key[0]].partitions)]
        starts = admin.list_offsets(dict.fromkeys(known, "earliest"))
        ends = admin.list_offsets(dict.fromkeys(known, "latest"))
        stable = admin.list_offsets(dict.fromkeys(known, "latest"), isolation_level="read_committed")
    except BrokerError:
        return ()
    return tuple(
        PartitionState(
            topic=key[0],
            partition=key[1],
            log_start=starts[key].offset,
            stable_end=stable[key].offset,
            end=ends[key].offset,
            committed=committed[key],
        )
        for key in sorted(known)
    )


def _transactions(admin: Admin, read: set[tuple[str, int]]) -> tuple[OpenTransaction, ...]:
    try:
        found = list_open_transactions(admin.client)
    except BrokerError:
        return ()
    return tuple(
        OpenTransaction(
            transactional_id=each.transactional_id,
            begun_ms=each.begun_ms,
            timeout_ms=each.timeout_ms,
            partitions=tuple(key for key in each.partitions if key in read),
        )
        for each in found
        if read.intersection(each.partitions)
    )


def _obstacles(admin: Admin, group_id: str) -> tuple[tuple[str, str], ...]:
    group = admin.try_describe_streams_groups([group_id]).done.get(group_id)
    if group is None or group.state != "NotReady":
        return ()
    return tuple((each.why, each.do) for each in find_obstacles(admin, group))
