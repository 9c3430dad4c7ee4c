"""Timers of a stateful processor: registered by key, listed by key, fired in the order of time.

A timer is an entry in the order of time, so that those that are due are the first ones, and its key has an entry with
the times of all its timers, which `listTimers` and `deleteTimer` need (`processor_state` lists the entries). A timer
that is due fires once: it is deleted in the micro-batch that fires it, in the transaction of the rows that follow.
"""

from __future__ import annotations

import bisect
import operator
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from headrace.spark.runtime.stores.state_rows import StateRows
from headrace.spark.runtime.stores.store_names import EVERY, TIMER, TIMERS, short_key, sortable

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["KeysInTurn", "Timers"]

_BYTES = (("value", '"binary"'),)
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class KeysInTurn(Protocol):
    """Keys of a micro-batch, each of which has its turn, and the store. `ProcessorState` implements it."""

    @property
    def reader(self) -> StoreReader: ...
    @property
    def fingerprint(self) -> bytes: ...
    @property
    def key(self) -> bytes: ...
    @property
    def whole_key(self) -> bytes: ...
    def next_keys(self, key: bytes) -> list[bytes]: ...
    def read(self, names: Sequence[bytes]) -> pa.Array: ...


class Timers:
    """Timers of all keys in one micro-batch. Mutable: what was read, and what it became."""

    def __init__(self, state: KeysInTurn) -> None:
        self._state = state
        self._rows = StateRows(_BYTES, state.fingerprint)
        self._stored: dict[bytes, tuple[int, ...]] = {}
        self._times: dict[bytes, list[int]] = {}  # of keys whose timers were asked for, ascending
        self._whole: dict[bytes, bytes] = {}  # keys of those, as the micro-batch has them

    def register(self, time_ms: int) -> None:
        """Register a timer of the key whose turn it is. One that is there stays the only one of its time."""
        time_ms = operator.index(time_ms)
        if not _LEAST <= time_ms < _MOST:
            raise ValueError(f"a timer at {time_ms} ms: expected a number of 64 bits")
        times = self._of_key()
        at = bisect.bisect_left(times, time_ms)
        if times[at : at + 1] != [time_ms]:
            times.insert(at, time_ms)

    def delete(self, time_ms: int) -> None:
        """Delete a timer of the key whose turn it is, if it has it."""
        times = self._of_key()
        if time_ms in times:
            times.remove(time_ms)

    def times(self) -> Iterator[int]:
        """Return the times of the key whose turn it is, ascending."""
        return iter(tuple(self._of_key()))

    def is_due(self, until_ms: int) -> bool:
        """Whether the store has a timer that is due, before anything was changed."""
        return bool(len(self._due_names(until_ms, 1)))

    def due(self, until_ms: int) -> list[tuple[int, bytes]]:
        """Return (time, key) of the timers that are due now, in the order of time and then of keys.

        A timer that `handleExpiredTimer` registers for a time that has passed is due in the next micro-batch.
        """
        names = self._due_names(until_ms, EVERY)
        keys = [key for (key,) in self._rows.decode(self._state.reader.values(names))]
        found = {}
        for name, key in zip(names.to_pylist(), keys, strict=True):
            if short_key(key) not in self._times:  # else what became of it counts
                found[_time_of(name), short_key(key)] = key
        for short, times in self._times.items():
            found |= {(time_ms, short): self._whole[short] for time_ms in times if time_ms <= until_ms}
        return [(time_ms, key) for (time_ms, _), key in sorted(found.items())]

    def next_due_ms(self, entries: dict[bytes, bytes | None]) -> int | None:
        """Return the time of the first timer behind the changes `entries`; None without any."""
        timers = {name: value is not None for name, value in entries.items() if name.startswith(TIMER)}
        # One more than are deleted, so that one is left if there is one.
        gone = sum(not is_there for is_there in timers.values())
        stored = self._due_names(_MOST - 1, gone + 1).to_pylist()
        left = [name for name in stored if timers.get(name, True)] + [
            name for name, is_there in timers.items() if is_there
        ]
        return _time_of(min(left)) if left else None

    def has(self, time_ms: int) -> bool:
        """Whether the key whose turn it is still has a timer."""
        return time_ms in self._of_key()

    def write(self, entries: dict[bytes, bytes | None]) -> None:
        """Add the changed entries of the store."""
        names: list[bytes] = []
        values: list[tuple[bytes]] = []
        for short, times in self._times.items():
            before = self._stored[short]
            if tuple(times) == before:
                continue
            entries.update((TIMER + sortable(gone) + short, None) for gone in set(before) - set(times))
            added = sorted(set(times) - set(before))
            names += [TIMER + sortable(time_ms) + short for time_ms in added]
            values += [(self._whole[short],)] * len(added)
            if times:
                names.append(TIMERS + short)
                values.append((struct.pack(f">{len(times)}q", *times),))
            else:
                entries[TIMERS + short] = None
        if names:
            entries.update(zip(names, self._rows.encode(values).to_pylist(), strict=True))

    def _of_key(self) -> list[int]:
        key = self._state.key
        if key not in self._times:
            wanted = [one for one in self._state.next_keys(key) if one not in self._stored]
            if wanted:
                found = self._state.read([TIMERS + one for one in wanted])
                packed = iter(self._rows.decode(found.drop_null()))
                for one, there in zip(wanted, found.is_valid().to_pylist(), strict=True):
                    times = next(packed)[0] if there else b""
                    self._stored[one] = struct.unpack(f">{len(times) // 8}q", times)
            self._times[key], self._whole[key] = list(self._stored[key]), self._state.whole_key
        return self._times[key]

    def _due_names(self, until_ms: int, most: int) -> pa.Array:
        return self._state.reader.keys_between(TIMER, TIMER + sortable(min(until_ms, _MOST - 1) + 1), most)


def _time_of(name: bytes) -> int:
    [number] = struct.unpack_from(">Q", name, len(TIMER))
    return int(number) - (1 << 63)
