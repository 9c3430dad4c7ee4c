"""Offsets of the last minutes in ring buffers: lag and rate over time by group, topic and partition. Pure.

Times are arguments. All series end at the last snapshot; a series that began later is shorter.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, GroupSnapshot

__all__ = ["POINTS", "OffsetSeries", "Progress", "Ring", "recent_rate", "step_rates"]

TopicPartition = tuple[str, int]
Key = TypeVar("Key")
# With the default interval of 5 s: five minutes. A ring takes 0.5 kB, and a partition has one for each group that
# commits for it, times two, and one of its own.
POINTS = 60
# Commits arrive in steps, one per micro-batch or poll. Over one interval, a rate would alternate between 0 and double.
RATE_WINDOW_MS = 15_000


class Ring:
    """The last `POINTS` whole numbers. Mutable."""

    __slots__ = ("values",)

    def __init__(self) -> None:
        self.values = array("q")

    def add(self, value: int) -> None:
        """Add the newest value and drop the oldest one if there are too many."""
        self.values.append(value)
        if len(self.values) > POINTS:
            del self.values[0]

    def last(self) -> int:
        """Return the newest value; 0 if there is none."""
        return self.values[-1] if self.values else 0


@dataclass(slots=True)
class Progress:
    """Read records and waiting records by time. Mutable.

    `done` are positions of a partition; of a group or a topic it is a counter that rises with the positions, so that a
    partition that is seen for the first time is no progress.
    """

    done: Ring = field(default_factory=Ring)
    lag: Ring = field(default_factory=Ring)

    def add(self, done: int, lag: int) -> None:
        """Add the newest values."""
        self.done.add(done)
        self.lag.add(lag)


class OffsetSeries:
    """Series of all groups, topics and partitions. Mutable: `add` takes each snapshot once, in order."""

    def __init__(self) -> None:
        self.times_ms: list[int] = []
        self.cluster = Progress()
        self.groups: dict[str, Progress] = {}
        self.group_partitions: dict[str, dict[TopicPartition, Progress]] = {}
        self.topics: dict[str, Ring] = {}
        self.partitions: dict[TopicPartition, Ring] = {}

    def add(self, snapshot: ClusterSnapshot, now_ms: int) -> None:
        """Add a snapshot; `now_ms` must not go backwards."""
        self.times_ms.append(now_ms)
        del self.times_ms[:-POINTS]
        _keep(self.groups, snapshot.groups)
        _keep(self.group_partitions, snapshot.groups)
        lag = sum(self._add_group(group, snapshot) for group in snapshot.groups.values())
        self.cluster.add(self.cluster.done.last() + self._add_ends(snapshot), lag)

    def _add_group(self, group: GroupSnapshot, snapshot: ClusterSnapshot) -> int:
        partitions = self.group_partitions.setdefault(group.group_id, {})
        _keep(partitions, group.committed)
        total = self.groups.setdefault(group.group_id, Progress())
        done, lag = total.done.last(), 0
        for key, committed in group.committed.items():
            series = partitions.get(key)
            if series is None:
                series = partitions[key] = Progress()
            else:
                # A position that went back was reset.
                done += max(0, committed - series.done.last())
            found = snapshot.partitions.get(key)
            if found is None or found.end is None or found.start is None:
                waiting = series.lag.last()  # without a leader nothing is known of the log
            else:
                waiting = max(0, found.end - max(committed, found.start))
            series.add(committed, waiting)
            lag += waiting
        total.add(done, lag)
        return lag

    def _add_ends(self, snapshot: ClusterSnapshot) -> int:
        """Add the ends of all logs; return the number of records that arrived."""
        _keep(self.partitions, snapshot.partitions)
        arrived: dict[str, int] = {}
        for key, partition in snapshot.partitions.items():
            series = self.partitions.get(key)
            known = series is not None
            if series is None:
                series = self.partitions[key] = Ring()
            end = series.last() if partition.end is None else partition.end
            arrived[key[0]] = arrived.get(key[0], 0) + (max(0, end - series.last()) if known else 0)
            series.add(end)
        _keep(self.topics, arrived)
        for topic, count in arrived.items():
            ring = self.topics.setdefault(topic, Ring())
            ring.add(ring.last() + count)
        return sum(arrived.values())

    def rate(self, done: Ring) -> float | None:
        """Return the present rate per second; None before the second value."""
        return recent_rate(self.times_ms, done.values)

    def rates(self, done: Ring) -> list[float]:
        """Return the rate per second of each step."""
        return step_rates(self.times_ms, done.values)


def recent_rate(times_ms: Sequence[int], done: Sequence[int]) -> float | None:
    """Return the rate over the last `RATE_WINDOW_MS` at least, or over everything if there is less."""
    if len(done) < 2:
        return None
    times = times_ms[-len(done) :]
    first = next((i for i in range(len(done) - 2, -1, -1) if times[-1] - times[i] >= RATE_WINDOW_MS), 0)
    passed = times[-1] - times[first]
    return max(0, done[-1] - done[first]) * 1000 / passed if passed > 0 else None


def step_rates(times_ms: Sequence[int], done: Sequence[int]) -> list[float]:
    """Return the records per second of each step; one value fewer than positions."""
    times = times_ms[-len(done) :] if done else []
    return [
        max(0, done[i] - done[i - 1]) * 1000 / (times[i] - times[i - 1]) if times[i] > times[i - 1] else 0.0
        for i in range(1, len(done))
    ]


def _keep(kept: dict[Key, Any], present: Collection[Key]) -> None:
    for gone in [key for key in kept if key not in present]:
        del kept[gone]
