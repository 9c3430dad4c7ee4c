"""Instances come and go while records flow; the same on our broker and on Apache Kafka."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable

from tests.client.task_loop import TaskLoop

from headrace.client.network_client import NetworkClient
from headrace.client.plain_records import PlainRecord, produce

__all__ = ["move_tasks_around"]

PARTITIONS = 8
PATIENCE_S = 40


class _Feed(threading.Thread):
    """A record for each partition every ten milliseconds."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        super().__init__(name="feed", daemon=True)
        self._client = NetworkClient(bootstrap_servers, client_id="feed")
        self._topic = topic
        self._stopping = threading.Event()
        self.sent = 0  # per partition

    def run(self) -> None:
        while not self._stopping.wait(0.01):
            for partition in range(PARTITIONS):
                produce(self._client, self._topic, [PlainRecord(value=b"v")], partition=partition)
            self.sent += 1
        self._client.close()

    def stop(self) -> int:
        self._stopping.set()
        self.join()
        return self.sent


class _Log:
    """Which instance processed which record, in the order of the processing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.entries: list[tuple[str, int, int, int]] = []

    def of(self, name: str) -> Callable[[int, int, int], None]:
        def note(partition: int, offset: int, at_ns: int) -> None:
            with self._lock:
                self.entries.append((name, partition, offset, at_ns))

        return note

    def next_offsets(self) -> list[int]:
        with self._lock:
            found = [0] * PARTITIONS
            for _, partition, offset, _ in self.entries:
                found[partition] = max(found[partition], offset + 1)
            return found


def move_tasks_around(bootstrap_servers: str, group: str, topic: str, *, rounds: int) -> None:
    """Two instances, and a third that comes and goes; asserts what must hold. `topic` has 8 partitions."""
    log, feed = _Log(), _Feed(bootstrap_servers, topic)
    loops = {name: TaskLoop(name, bootstrap_servers, group, topic, log.of(name)) for name in ("a", "b")}
    for loop in loops.values():
        loop.start()
    _until_shared(loops, [4, 4])
    feed.start()
    for number in range(rounds):
        before = {name: set(loop.tasks) for name, loop in loops.items()}
        given_back = {name: len(loop.revoked) for name, loop in loops.items()}
        third = TaskLoop(f"c-{number}", bootstrap_servers, group, topic, log.of(f"c-{number}"))
        third.start()
        everybody = {**loops, third.name: third}
        _until_shared(everybody, [2, 3, 3])
        for name, loop in loops.items():
            gone = loop.revoked[given_back[name] :]
            assert set(gone) == before[name] - set(loop.tasks), "a task that stays is not taken away, not for a moment"
            assert len(gone) == 1
        assert not third.revoked
        given_back = {name: len(loop.revoked) for name, loop in loops.items()}
        third.stop()
        _until_shared(loops, [4, 4])
        for name, loop in loops.items():
            assert len(loop.revoked) == given_back[name], "a leave takes nothing from those who stay"
    sent = feed.stop()
    _until(lambda: min(log.next_offsets()) >= sent, loops)
    for loop in loops.values():
        loop.stop()
    _check(log.entries, sent)


def _check(entries: list[tuple[str, int, int, int]], sent: int) -> None:
    offsets: dict[int, list[int]] = defaultdict(list)
    owners: dict[int, list[str]] = defaultdict(list)
    for name, partition, offset, _ in sorted(entries, key=lambda entry: entry[3]):
        offsets[partition].append(offset)
        if not owners[partition] or owners[partition][-1] != name:
            owners[partition].append(name)
    for partition in range(PARTITIONS):
        assert offsets[partition] == list(range(sent)), f"partition {partition}: once, in order, none left out"
    assert any(len(names) > 1 for names in owners.values()), "tasks moved"


def _until_shared(loops: dict[str, TaskLoop], shares: list[int]) -> None:
    _until(lambda: sorted(len(loop.tasks) for loop in loops.values()) == shares, loops)


def _until(condition: Callable[[], bool], loops: dict[str, TaskLoop]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        for loop in loops.values():
            if loop.error is not None:
                raise loop.error
        assert time.monotonic() < until, f"it did not happen: { {name: loop.tasks for name, loop in loops.items()} }"
        time.sleep(0.005)
