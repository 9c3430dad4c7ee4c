"""The one collector behind all browsers: frames of the cluster, and those who wait for the next one.

A frame is a snapshot with a number. Documents are computed from the last frame, so any number of browsers costs the
cluster nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from headrace.cli.exporter.cluster_snapshot import ClusterSnapshot, Selection
from headrace.cli.exporter.snapshot_history import SnapshotHistory
from headrace.cli.exporter.snapshot_loop import SnapshotLoop
from headrace.cli.group_view import find_obstacles
from headrace.cli.readiness import Obstacle, unread_partitions
from headrace.cli.ui.offset_series import OffsetSeries
from headrace.client.admin_results import StreamsGroupDescription
from headrace.errors import BrokerError, HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["ClusterWatch", "Frame"]

logger = logging.getLogger("headrace.ui")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The cluster at one moment, as all pages show it.

    Attributes:
        version: Rises with every collection, also with one that failed.
        is_up: Whether the last collection succeeded.
        error: Its message if it did not.
        collected_at_ms: Wall-clock time of the snapshot; None before the first one.
        collection_seconds: How long the last collection took.
        snapshot: The last snapshot; None before the first one.
        obstacles: Reasons of streams groups without tasks, by group.
    """

    version: int = 0
    is_up: bool = False
    error: str = ""
    collected_at_ms: int | None = None
    collection_seconds: float = 0.0
    snapshot: ClusterSnapshot | None = None
    obstacles: dict[str, tuple[Obstacle, ...]] = field(default_factory=dict)


class ClusterWatch:
    """Collects on a thread and keeps the last frame. Mutable, for any number of threads.

    `lock` protects `series` and `history`, which the collector changes in place.
    """

    def __init__(
        self,
        open_admin: Callable[[], Admin],
        selection: Selection,
        *,
        interval_seconds: float,
        clock: Callable[[], float] = time.monotonic,
        wall_clock_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """Collect nothing yet.

        Args:
            open_admin: Called for the first collection and after each failed one.
            selection: Groups and topics to show.
            interval_seconds: From the beginning of one collection to that of the next.
            clock: Seconds that only go forward.
            wall_clock_ms: The time that pages show.
        """
        self.interval_seconds = interval_seconds
        self.lock = threading.Lock()
        self.series = OffsetSeries()
        self.history = SnapshotHistory()
        self.now_ms = 0  # of the last snapshot, by `clock`
        self._frame = Frame()
        self._clock = clock
        self._wall_clock_ms = wall_clock_ms
        self._listeners: list[Callable[[], None]] = []
        self._loop = SnapshotLoop(
            open_admin,
            selection,
            interval_seconds=interval_seconds,
            logger=logger,
            on_snapshot=self._add,
            on_failure=self._fail,
            # A large cluster gets at most half of a core: requests of browsers share the interpreter.
            least_rest=1.0,
            clock=clock,
        )

    @property
    def frame(self) -> Frame:
        """The last frame."""
        return self._frame

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each collection, on the thread of the collector."""
        self._listeners.append(listener)

    def run(self, stop: threading.Event) -> None:
        """Collect until `stop` is set."""
        self._loop.run(stop)

    def collect(self) -> HeadraceError | None:
        """Collect once; return the error of a collection that failed."""
        return self._loop.collect()

    def close(self) -> None:
        """Close the connections."""
        self._loop.close()

    def _add(self, admin: Admin, snapshot: ClusterSnapshot, seconds: float) -> None:
        obstacles = _obstacles(admin, snapshot)
        with self.lock:
            self.now_ms = int(self._clock() * 1000)
            self.series.add(snapshot, self.now_ms)
            self.history.add(snapshot, self.now_ms)
            self._frame = Frame(
                version=self._frame.version + 1,
                is_up=True,
                collected_at_ms=self._wall_clock_ms(),
                collection_seconds=seconds,
                snapshot=snapshot,
                obstacles=obstacles,
            )
        self._tell()

    def _fail(self, error: HeadraceError, seconds: float) -> None:
        with self.lock:
            self._frame = replace(
                self._frame,
                version=self._frame.version + 1,
                is_up=False,
                error=error.message,
                collection_seconds=seconds,
            )
        self._tell()

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


def _obstacles(admin: Admin, snapshot: ClusterSnapshot) -> dict[str, tuple[Obstacle, ...]]:
    found: dict[str, tuple[Obstacle, ...]] = {}
    for group in snapshot.groups.values():
        described = group.description
        if not isinstance(described, StreamsGroupDescription):
            continue
        try:
            # Groups with tasks are compared with the topics of the snapshot: no request per group.
            if described.state == "NotReady" or (described.topology is None and described.members):
                reasons = find_obstacles(admin, described)
            else:
                reasons = () if described.topology is None else unread_partitions(described.topology, snapshot.topics)
        except BrokerError as error:
            reasons = (Obstacle(status="UNKNOWN", why=f"the reason is unknown: {error.message}", do=""),)
        if reasons:
            found[group.group_id] = reasons
    return found
