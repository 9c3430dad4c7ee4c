"""Restore bandwidth as a resource: transfers of changelogs share what an instance reads and what a broker serves.

Virtual time passes in steps of STEP_MS. In a step a transfer gets the smaller of two equal shares: of its instance's
bandwidth and of its broker's. Bandwidth that one transfer cannot use because of its other end is not passed on to the
others (max-min fairness would do so), so the simulated restore is never faster than the real one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from headrace.simulator.event_queue import EventQueue
from headrace.simulator.topologies import Task

__all__ = ["RestoreLinks"]

# Compromise: a step costs one pass over all transfers (up to 20,000 in the default course, active and standby), and
# durations are exact to a step.
STEP_MS = 250


@dataclass(slots=True, kw_only=True)
class _Transfer:
    """Mutable: the bytes that are still to come."""

    instance: str
    broker: int
    bytes_left: float
    on_end: Callable[[], None]


class RestoreLinks:
    """The links of all instances and brokers. Mutable.

    Attributes:
        received: bytes that each instance has received so far.
        sent: bytes that each broker has sent so far.
        unreachable: brokers that send nothing at present.
    """

    def __init__(
        self, events: EventQueue, *, brokers: int, instance_bytes_per_s: float, broker_bytes_per_s: float
    ) -> None:
        self._events = events
        self._brokers = brokers
        self._instance_bytes = instance_bytes_per_s * STEP_MS / 1000
        self._broker_bytes = broker_bytes_per_s * STEP_MS / 1000
        self._transfers: dict[tuple[str, Task], _Transfer] = {}
        self._ticking = False
        self.received: Counter[str] = Counter()
        self.sent: Counter[int] = Counter()
        self.unreachable: set[int] = set()

    @property
    def busy(self) -> int:
        """Number of transfers under way."""
        return len(self._transfers)

    def start(self, instance: str, task: Task, amount: float, on_end: Callable[[], None]) -> None:
        """Transfer `amount` bytes of the task's changelog, then call `on_end`. One transfer per instance and task."""
        broker = self.leader(task)
        self._transfers[instance, task] = _Transfer(instance=instance, broker=broker, bytes_left=amount, on_end=on_end)
        if not self._ticking:
            self._ticking = True
            self._events.after(STEP_MS, self._step)

    def receives(self, instance: str, task: Task) -> bool:
        """Return whether a transfer of this task's changelog to the instance is under way."""
        return (instance, task) in self._transfers

    def cancel(self, instance: str, task: Task) -> None:
        """End a transfer early, if there is one."""
        self._transfers.pop((instance, task), None)

    def leader(self, task: Task) -> int:
        """Return the broker that leads the task's changelog partition."""
        return task[1] % self._brokers

    def _step(self) -> None:
        moving = [each for each in self._transfers.items() if each[1].broker not in self.unreachable]
        at_instance = Counter(transfer.instance for _, transfer in moving)
        at_broker = Counter(transfer.broker for _, transfer in moving)
        ended = []
        for key, transfer in moving:
            share = min(
                self._instance_bytes / at_instance[transfer.instance],
                self._broker_bytes / at_broker[transfer.broker],
                transfer.bytes_left,
            )
            transfer.bytes_left -= share
            self.received[transfer.instance] += share  # type: ignore[assignment] # a Counter of float bytes
            self.sent[transfer.broker] += share  # type: ignore[assignment]
            if transfer.bytes_left <= 0:
                ended.append(key)
        for key in ended:
            # An earlier `on_end` of this step may have cancelled a later transfer.
            if (transfer_ended := self._transfers.pop(key, None)) is not None:
                transfer_ended.on_end()
        self._ticking = bool(self._transfers)
        if self._ticking:
            self._events.after(STEP_MS, self._step)
