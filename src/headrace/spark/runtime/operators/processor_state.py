"""State of a stateful processor in one micro-batch of one task: reads from the store ahead, changes collected.

The store of a processor has these entries. `place` is the variable's name, its length in front, and the key of the
group, its length in two bytes in front, so no place begins with another one:

    00 · source/task                 → the watermark of an upstream task (`upstream_clock`)
    01 · place                       → a value
    02 · place                       → of a list: numbers of its first element and behind its last one
    03 · place · number (8 bytes)    → an element of a list
    04 · place · key of the map      → an entry of a map: the key's columns, then the value's
    05 · time (8 bytes) · key        → a timer: the key whole
    06 · key                         → the times of all timers of a key
    07 · time (8 bytes) · entry      → nothing: the time at which `entry` (01 to 04) expires
    08                               → nothing: the initial state was taken

Lists and maps have an entry for each element: a list that grows does not write its elements again, to the changelog as
well. Timers and times of expiry come in the order of time, so what is due is found by a range scan. Rejected: one
entry for each key with all that it has, as Python's pickle: a processor that appends would write everything each time.

User code asks for one value at a time. The keys of a micro-batch are known, so values, lists and timers are read for
the next `AHEAD` keys at once. Entries of maps are read one by one, because a map may be large.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.types import Row

from headrace.spark.runtime.operators.processor_timers import Timers
from headrace.spark.runtime.rows.rows import empty_row
from headrace.spark.runtime.stores.bulk_load import order_of_keys
from headrace.spark.runtime.stores.state_rows import StateRows, Values
from headrace.spark.runtime.stores.store_names import (
    ELEMENT,
    ENTRY,
    EVERY,
    EXPIRY,
    LONGEST_KEY,
    RANGE,
    VALUE,
    short_key,
    sortable,
)
from headrace.spark.topology.nodes import StateVariable

if TYPE_CHECKING:
    from headrace.spark.runtime.stores.store import StoreReader

__all__ = ["AHEAD", "LONGEST_VARIABLE", "ListVariable", "MapVariable", "ProcessorState", "ValueVariable"]

AHEAD = 1000  # keys that are read at once
LONGEST_VARIABLE = 60  # bytes of a name
_RANGE = (("first", '"long"'), ("end", '"long"'))


@dataclass(slots=True)
class _Writes:
    """Changed entries of the store: name → value, None to delete."""

    entries: dict[bytes, bytes | None] = field(default_factory=dict)

    def put(self, names: Sequence[bytes], values: pa.Array) -> None:
        self.entries.update(zip(names, values.to_pylist(), strict=True))


class ProcessorState:
    """All variables of a processor for one task and micro-batch. Mutable: the key whose turn it is, and changes."""

    def __init__(
        self,
        variables: Sequence[StateVariable],
        fingerprint: bytes,
        reader: StoreReader,
        keys: Sequence[bytes],
        now_ms: int,
    ) -> None:
        """Prepare.

        Args:
            variables: What the processor declared.
            fingerprint: Of the store's rows.
            reader: The store.
            keys: Keys of the micro-batch in the order in which they have their turn.
            now_ms: Processing time of the micro-batch.
        """
        self.reader, self.fingerprint, self.now_ms = reader, fingerprint, now_ms
        self._keys = [short_key(key) for key in keys]
        self._turns = {key: turn for turn, key in enumerate(self._keys)}
        self._key: bytes | None = None
        self.whole_key = b""  # of `key`, which has a digest in place of a long one
        self.timers = Timers(self)
        self._names = {variable.name for variable in variables}
        self.variables: dict[str, Variable] = {
            variable.name: _KINDS[variable.kind](variable, self) for variable in variables
        }

    def turn_to(self, key: bytes | None) -> None:
        """Let the following calls be about this key; None: about no key."""
        self._key = None if key is None else short_key(key)
        self.whole_key = key or b""

    @property
    def key(self) -> bytes:
        """The key whose turn it is. Raises PySparkRuntimeError outside of a turn."""
        if self._key is None:
            raise PySparkRuntimeError("Implicit key not found: state belongs to a key, and no key has its turn here")
        return self._key

    def next_keys(self, key: bytes) -> list[bytes]:
        """Return the keys to read when this one is read, in byte order: itself and those with the next turns."""
        turn = self._turns.get(key)
        return [key] if turn is None else sorted(self._keys[turn : turn + AHEAD])

    def read(self, names: Sequence[bytes]) -> pa.Array:
        """Return stored values by their names, which are in byte order."""
        return self.reader.values(pa.array(names, pa.binary()))

    def is_live(self, row: Values) -> bool:
        """Whether a stored row has not expired: its last value is the time at which it does."""
        return bool(row[-1] > self.now_ms)

    def writes(self) -> dict[bytes, bytes | None]:
        """Return all changes of variables and timers, expired entries included."""
        writes = _Writes()
        for variable in self.variables.values():
            variable.write(writes)
        if any(variable.expires for variable in self.variables.values()):
            self._delete_expired(writes)
        self.timers.write(writes.entries)
        return writes.entries

    def _delete_expired(self, writes: _Writes) -> None:
        # All of them at once: numbers of a list begin again when it has expired, and then none of its elements may be
        # left that a later micro-batch would delete.
        found = self.reader.keys_between(EXPIRY, EXPIRY + sortable(self.now_ms + 1), EVERY).to_pylist()
        for name in found:
            # An entry that this micro-batch wrote anew has another time of expiry; it took the old one back itself.
            if name not in writes.entries:
                writes.entries[name] = None
                writes.entries.setdefault(name[len(EXPIRY) + 8 :], None)


class _Variable:
    """Common base of the kinds of variables."""

    def __init__(self, variable: StateVariable, state: ProcessorState) -> None:
        self._variable, self._state = variable, state
        self.expires = variable.ttl_ms is not None
        self._rows = StateRows(variable.columns, state.fingerprint, expires=self.expires)
        name = variable.name.encode()
        self._place = bytes([len(name)]) + name

    def write(self, writes: _Writes) -> None:
        raise NotImplementedError

    def name_of(self, kind: bytes, key: bytes) -> bytes:
        return kind + self._place + struct.pack(">H", len(key)) + key

    def _until(self) -> Values:
        """Return what a row that is written now has behind its columns."""
        return () if self._variable.ttl_ms is None else (self._state.now_ms + self._variable.ttl_ms,)

    def _shown(self, row: Values | None) -> Values | None:
        """Return a row as the processor sees it; None if it is not there, or has expired."""
        if row is None or (self.expires and not self._state.is_live(row)):
            return None
        return self._rows.values(row)

    def _put(
        self,
        writes: _Writes,
        rows: StateRows,
        names: Sequence[bytes],
        new: Sequence[Values],
        old: Sequence[Values | None],
    ) -> None:
        """Write entries, and their times of expiry instead of the old ones."""
        writes.put(names, rows.encode(new))
        if self.expires:
            mark = empty_row(self._state.fingerprint)
            for name, row, before in zip(names, new, old, strict=True):
                if before is not None and before[-1] != row[-1]:
                    writes.entries[EXPIRY + sortable(before[-1]) + name] = None
                writes.entries[EXPIRY + sortable(row[-1]) + name] = mark

    def _delete(self, writes: _Writes, name: bytes, old: Values | None) -> None:
        writes.entries[name] = None
        if self.expires and old is not None:
            writes.entries[EXPIRY + sortable(old[-1]) + name] = None


class ValueVariable(_Variable):
    """A value of each key."""

    def __init__(self, variable: StateVariable, state: ProcessorState) -> None:
        super().__init__(variable, state)
        self._stored: dict[bytes, Values | None] = {}
        self._changed: dict[bytes, Values | None] = {}

    def get(self) -> Values | None:
        key = self._state.key
        return self._shown(self._changed[key] if key in self._changed else self._read(key))

    def exists(self) -> bool:
        return self.get() is not None

    def update(self, value: Any) -> None:
        self._changed[self._state.key] = self._rows.checked(value) + self._until()

    def clear(self) -> None:
        self._changed[self._state.key] = None

    def write(self, writes: _Writes) -> None:
        put = [key for key, row in self._changed.items() if row is not None]
        old = [self._read(key) if self.expires else None for key in put]
        names = [self.name_of(VALUE, key) for key in put]
        self._put(writes, self._rows, names, [self._changed[key] or () for key in put], old)
        for key, row in self._changed.items():
            if row is None and (before := self._read(key)) is not None:
                self._delete(writes, self.name_of(VALUE, key), before)

    def _read(self, key: bytes) -> Values | None:
        if key not in self._stored:
            self._stored.update(
                _read_ahead(self._state, key, self._stored, self._rows, lambda k: self.name_of(VALUE, k))
            )
        return self._stored[key]


@dataclass(slots=True)
class _List:
    """The list of one key: what is stored, and what was changed."""

    first: int  # number of the first stored element
    end: int  # number behind the last stored one
    until: int  # when the whole list expires
    replaced: bool = False  # the stored elements do not count any more
    added: list[Values] = field(default_factory=list)
    stored: list[Values] | None = None  # once read
    changed: bool = False


class ListVariable(_Variable):
    """A list of each key."""

    def __init__(self, variable: StateVariable, state: ProcessorState) -> None:
        super().__init__(variable, state)
        self._ranges = StateRows(_RANGE, state.fingerprint, expires=self.expires)
        self._lists: dict[bytes, _List] = {}
        self._elements: dict[bytes, list[Values]] = {}

    def get(self) -> Iterator[Values]:
        found = self._list()
        rows = [*([] if found.replaced else self._stored(found)), *found.added]
        return iter([shown for row in rows if (shown := self._shown(row)) is not None])

    def exists(self) -> bool:
        found = self._list()
        if found.added or (not self.expires and not found.replaced and found.end > found.first):
            return True
        return next(self.get(), None) is not None

    def put(self, values: Any) -> None:
        rows = [self._rows.checked(value) + self._until() for value in values]
        found = self._list()
        found.replaced, found.added, found.changed = True, rows, True

    def append(self, values: Any) -> None:
        rows = [self._rows.checked(value) + self._until() for value in values]
        found = self._list()
        found.added += rows
        found.changed = found.changed or bool(rows)

    def clear(self) -> None:
        found = self._list()
        found.replaced, found.added, found.changed = True, [], True

    def write(self, writes: _Writes) -> None:
        names: list[bytes] = []
        rows: list[Values] = []
        for key, found in self._lists.items():
            if not found.changed:
                continue
            place = self.name_of(ELEMENT, key)
            if found.replaced:
                self._delete_stored(writes, found, key)
            # Numbers go on behind deleted elements: an element is never replaced by another one under its number.
            first, end = (found.end if found.replaced else found.first), found.end + len(found.added)
            names += [place + sortable(number) for number in range(found.end, end)]
            rows += found.added
            of_list = self.name_of(RANGE, key)
            old = (found.first, found.end, found.until) if found.end > found.first else None
            if end == first:
                if old is not None:
                    self._delete(writes, of_list, old)
            elif self.expires:
                self._put(writes, self._ranges, [of_list], [(first, end, max(found.until, *self._until()))], [old])
            else:
                self._put(writes, self._ranges, [of_list], [(first, end)], [old])
        self._put(writes, self._rows, names, rows, [None] * len(rows))

    def _delete_stored(self, writes: _Writes, found: _List, key: bytes) -> None:
        place = self.name_of(ELEMENT, key)
        if not self.expires:
            writes.entries.update(dict.fromkeys((place + sortable(n) for n in range(found.first, found.end)), None))
            return
        # Elements that have expired may be gone: what is there has to be looked up, with its time of expiry.
        names = self._state.reader.keys_between(place, place + b"\xff" * 9, EVERY).to_pylist()
        for name, row in zip(names, self._rows.decode(self._state.read(names)) if names else (), strict=True):
            self._delete(writes, name, row)

    def _list(self) -> _List:
        key = self._state.key
        if key not in self._lists:
            ranges = _read_ahead(self._state, key, self._lists, self._ranges, lambda k: self.name_of(RANGE, k))
            for one, row in ranges.items():
                first, end, *until = row or (0, 0)
                self._lists[one] = _List(first=first, end=end, until=until[0] if until else 0)
        return self._lists[key]

    def _stored(self, found: _List) -> list[Values]:
        if found.stored is None:
            key = self._state.key
            # All lists that are known to be there and not yet read: at least that of the key itself.
            keys = [one for one in self._state.next_keys(key) if one == key or self._is_unread(one)]
            places = pa.array([self.name_of(ELEMENT, one) for one in keys], pa.binary())
            order = order_of_keys(places)
            if order is not None:
                places, keys = places.take(order), [keys[at] for at in order.to_pylist()]
            numbers, values = self._state.reader.values_under(places)
            of_key: list[list[Values]] = [[] for _ in keys]
            for number, row in zip(numbers.tolist(), self._rows.decode(values), strict=True):
                of_key[number].append(row)
            for one, rows in zip(keys, of_key, strict=True):
                self._lists[one].stored = rows
        return found.stored or []

    def _is_unread(self, key: bytes) -> bool:
        found = self._lists.get(key)
        return found is not None and found.stored is None and found.end > found.first


@dataclass(slots=True)
class _Map:
    """The map of one key: what was read, and what was changed, by the bytes of the map's keys."""

    replaced: bool = False  # the stored entries do not count any more
    stored: dict[bytes, Values | None] = field(default_factory=dict)  # as far as read; None: not there
    changed: dict[bytes, Values | None] = field(default_factory=dict)
    is_whole: bool = False  # all stored entries were read


class MapVariable(_Variable):
    """A map of each key."""

    def __init__(self, variable: StateVariable, state: ProcessorState) -> None:
        super().__init__(variable, state)
        self._keys = StateRows(variable.key_columns)
        self._width = len(variable.key_columns)
        self._new_row = Row(*(name for name, _ in variable.columns))
        columns = (*variable.key_columns, *variable.columns)
        self._entries = StateRows(columns, state.fingerprint, expires=self.expires)
        self._maps: dict[bytes, _Map] = {}

    def get(self, key: Any) -> Row | None:
        """Return a value with the names of its columns: of all that PySpark reads from state only this is a `Row`."""
        found = self._shown(self._entry(self._name(key)[0]))
        return None if found is None else self._new_row(*found)

    def contains(self, key: Any) -> bool:
        return self._shown(self._entry(self._name(key)[0])) is not None

    def update(self, key: Any, value: Any) -> None:
        name, columns = self._name(key)
        self._map().changed[name] = columns + self._rows.checked(value) + self._until()

    def remove(self, key: Any) -> None:
        self._map().changed[self._name(key)[0]] = None

    def clear(self) -> None:
        found = self._map()
        found.replaced, found.changed = True, {}

    def exists(self) -> bool:
        return next(self.items(), None) is not None

    def items(self) -> Iterator[tuple[Values, Values]]:
        """Return the entries in the order of their keys' bytes, which no micro-batch and no move changes."""
        found = self._map()
        rows = found.changed if found.replaced else self._whole(found) | found.changed
        live = [
            (self._keys.values(row[: self._width]), shown)
            for _, row in sorted(rows.items())
            if row is not None and (shown := self._shown(row)) is not None
        ]
        return iter(live)

    def write(self, writes: _Writes) -> None:
        for key, found in self._maps.items():
            place = self.name_of(ENTRY, key)
            if found.replaced:
                for name, row in self._whole(found, key).items():
                    if row is not None and name not in found.changed:
                        self._delete(writes, place + name, row)
            put = [name for name, row in found.changed.items() if row is not None]
            old = [self._stored(found, name, key) if self.expires else None for name in put]
            self._put(writes, self._entries, [place + name for name in put], [found.changed[n] or () for n in put], old)
            for name, row in found.changed.items():
                if row is None and (before := self._stored(found, name, key)) is not None:
                    self._delete(writes, place + name, before)

    def _shown(self, row: Values | None) -> Values | None:
        if row is None or (self.expires and not self._state.is_live(row)):
            return None
        return self._rows.values(row[self._width :])

    def _name(self, key: Any) -> tuple[bytes, Values]:
        columns = self._keys.checked(key)
        return short_key(self._keys.encode_key(columns)), columns

    def _map(self) -> _Map:
        return self._maps.setdefault(self._state.key, _Map())

    def _entry(self, name: bytes) -> Values | None:
        found = self._map()
        if name in found.changed:
            return found.changed[name]
        return None if found.replaced else self._stored(found, name, self._state.key)

    def _stored(self, found: _Map, name: bytes, key: bytes) -> Values | None:
        if name not in found.stored and not found.is_whole:
            values = self._state.read([self.name_of(ENTRY, key) + name])
            found.stored[name] = None if values.null_count else self._entries.decode(values)[0]
        return found.stored.get(name)

    def _whole(self, found: _Map, key: bytes | None = None) -> dict[bytes, Values | None]:
        if not found.is_whole:
            place = self.name_of(ENTRY, self._state.key if key is None else key)
            names = self._state.reader.keys_between(place, place + b"\xff" * (LONGEST_KEY + 1), EVERY).to_pylist()
            rows = self._entries.decode(self._state.read(names)) if names else []
            found.stored = {name[len(place) :]: row for name, row in zip(names, rows, strict=True)}
            found.is_whole = True
        return found.stored


Variable: TypeAlias = ValueVariable | ListVariable | MapVariable
_KINDS: dict[str, Callable[[StateVariable, ProcessorState], Variable]] = {
    "value": ValueVariable,
    "list": ListVariable,
    "map": MapVariable,
}


def _read_ahead(
    state: ProcessorState, key: bytes, known: Any, rows: StateRows, name_of: Callable[[bytes], bytes]
) -> dict[bytes, Values | None]:
    """Return the stored rows of a key and of the next ones that are not known yet; None where there is none."""
    keys = [one for one in state.next_keys(key) if one not in known]
    named = sorted((name_of(one), one) for one in keys)
    values = state.read([name for name, _ in named])
    found = iter(rows.decode(values.drop_null()))
    return {
        one: next(found) if there else None
        for (_, one), there in zip(named, values.is_valid().to_pylist(), strict=True)
    }
