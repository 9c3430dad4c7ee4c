"""Committed values of a store, whatever is prepared in it: against a model, and beside a writer in another process."""

from __future__ import annotations

import multiprocessing
import shutil
from contextlib import contextmanager

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.values import not_none

from headrace.errors import StateError
from headrace.spark.runtime.stores.committed_view import END_OF_KEYS, LONG_KEYS, CommittedView
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, StorePosition, TaskStore
from headrace.spark.runtime.stores.store_readers import StoreReaders
from headrace.temporary_directories import OwnedDirectory

IDENTITY = StoreIdentity(changelog_topic_id="t1", schema_hash="s1", boot_id="b1")


def batch(number, attempt=0):
    return BatchKey(incarnation="one", batch_id=number, attempt=attempt)


def position(key):
    return StorePosition(batch=key, input_offsets={"in-0@id": key.batch_id}, changelog_offset=-1)


def binary(values):
    return pa.array(values, pa.binary())


def merge(store, after, key, changes):
    """Open a micro-batch that sets `changes` (None deletes)."""
    names = sorted(changes)
    return store.merge(after, position(key), binary(names), lambda old: binary([changes[name] for name in names]))


@contextmanager
def view_of(store, committed):
    with store._environment.lmdb.begin() as transaction:
        yield CommittedView(transaction, store._meta, store._blocks, committed)


def content(view, first=b"k", end=END_OF_KEYS):
    pieces = list(view.entries(first, end))
    found = [
        (name[1:], value)
        for names, values in pieces
        for name, value in zip(names.to_pylist(), values.to_pylist(), strict=True)
    ]
    assert [name for name, _ in found] == sorted({name for name, _ in found})
    return dict(found)


@pytest.fixture
def store(tmp_path):
    store = TaskStore(tmp_path / "s", IDENTITY)
    yield store
    store.close()


def test_an_undecided_batch_is_not_seen(store):
    merge(store, None, batch(1), {b"a": b"1", b"b": b"1"}).prepare(5)
    merge(store, batch(1), batch(2), {b"a": b"2", b"b": None, b"c": b"2"}).prepare(9)
    with view_of(store, batch(1)) as view:
        assert content(view) == {b"a": b"1", b"b": b"1"}
        assert view.values(binary([b"c", b"b", b"a"])).to_pylist() == [None, b"1", b"1"]
        assert view.position.changelog_offset == 5
    with view_of(store, batch(2)) as view:
        assert content(view) == {b"a": b"2", b"c": b"2"}
        assert view.position.batch == batch(2)
        assert view.position.changelog_offset == 9


def test_another_attempt_of_the_committed_batch_is_not_it(store):
    merge(store, None, batch(1), {b"a": b"1"}).prepare(5)
    merge(store, batch(1), batch(2, attempt=1), {b"a": b"2"}).prepare(9)
    with view_of(store, batch(2, attempt=0)) as view:
        assert content(view) == {b"a": b"1"}
        assert view.position.batch == batch(1)


def test_a_store_without_a_committed_batch_is_empty(store):
    with view_of(store, None) as view:
        assert view.position is None
        assert content(view) == {}
    merge(store, None, batch(1), {b"a": b"1"}).prepare(5)
    with view_of(store, None) as view:
        assert view.position is None
        assert content(view) == {}
        assert view.values(binary([b"a"])).to_pylist() == [None]


def test_a_batch_that_deletes_everything_is_undone_in_the_view(store):
    """No block is left in the file: all values come from the undo record."""
    rows = {b"%03d" % number: b"x" * 100 for number in range(200)}
    merge(store, None, batch(1), rows).prepare(5)
    merge(store, batch(1), batch(2), dict.fromkeys(rows)).prepare(9)
    with view_of(store, batch(1)) as view:
        assert content(view) == rows
        assert content(view, b"k050", b"k060") == {name: rows[name] for name in rows if b"050" <= name < b"060"}


def test_long_keys_are_found_and_known_to_be_there(store):
    long = b"y" * 600
    merge(store, None, batch(1), {b"a": b"1"}).prepare(5)
    with view_of(store, batch(1)) as view:
        assert not view.has_entries(*LONG_KEYS)
    merge(store, batch(1), batch(2), {long: b"2"}).prepare(9)
    with view_of(store, batch(1)) as view:
        assert not view.has_entries(*LONG_KEYS)
        assert view.values(binary([long, b"a"])).to_pylist() == [None, b"1"]
    with view_of(store, batch(2)) as view:
        assert view.has_entries(*LONG_KEYS)
        assert view.values(binary([long, b"a"])).to_pylist() == [b"2", b"1"]
        assert content(view) == {b"a": b"1"}


def test_the_identity_is_compared(store):
    with view_of(store, None) as view:
        assert view.difference(IDENTITY) is None
        other = StoreIdentity(changelog_topic_id="t2", schema_hash="s1", boot_id="b1")
        assert "created anew" in view.difference(other)


KEYS = [b"", b"a", b"b", b"b\xff", b"c" * 300, b"d" * 481, b"e" * 700, *(b"n%02d" % number for number in range(30))]
CHANGES = st.dictionaries(st.sampled_from(KEYS), st.one_of(st.none(), st.binary(max_size=300)), max_size=25)
OUTCOMES = st.sampled_from(
    ["committed", "undone", "crashed before it was prepared", "committed, unknown to the reader"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(CHANGES, OUTCOMES), max_size=12), st.lists(st.sampled_from(KEYS), min_size=2, max_size=2))
def test_views_are_committed_states(batches, bounds):
    """At each moment of a random history, a view has the values of exactly the batch that it names as its position."""
    directory = OwnedDirectory("headrace-test-")
    store = TaskStore(directory.path / "s", IDENTITY)
    states: dict[BatchKey | None, dict[bytes, bytes]] = {None: {}}  # by committed batch
    committed = None
    try:
        for number, (changes, outcome) in enumerate(batches):
            key = batch(number)
            open_batch = merge(store, committed, key, changes)
            check(store, states, committed, bounds)
            if outcome == "crashed before it was prepared":
                open_batch.abandon()
                check(store, states, committed, bounds)
                continue
            open_batch.prepare(number)
            check(store, states, committed, bounds)
            if outcome == "undone":
                continue
            after = {**states[committed], **changes}
            states[key] = {name: value for name, value in after.items() if value is not None}
            if outcome.endswith("reader"):
                check(store, states, committed, bounds)
            committed = key
            check(store, states, committed, bounds, newest=True)
    finally:
        store.close()
        shutil.rmtree(directory.path)


def check(store, states, committed, bounds, *, newest=False):
    with view_of(store, committed) as view:
        seen = view.position.batch if view.position is not None else None
        if newest:
            assert seen == committed
        wanted = states[seen]  # a batch that was not committed has no state here
        short = {name: value for name, value in wanted.items() if len(name) <= 480}
        assert content(view) == short
        assert view.values(binary(KEYS)).to_pylist() == [wanted.get(name) for name in KEYS]
        assert view.has_entries(*LONG_KEYS) == any(len(name) > 480 for name in wanted)
        low, high = sorted(name[:480] for name in bounds)
        assert content(view, b"k" + low, b"k" + high) == {
            name: value for name, value in short.items() if low <= name < high
        }


NUMBERS = 3_000  # keys; all have the same value in each committed state


def write_batches(path, committed, ended):
    """Commit 1, 2, 3, .. to all keys; between two of them prepare a batch that mixes values and is not committed."""
    store = TaskStore(path, IDENTITY)
    keys = [b"%08d" % number for number in range(NUMBERS)]
    after, number = None, 0
    for value in range(1, 1_000_000):
        if ended.is_set():
            break
        number += 1
        wrong = {key: b"%d" % (value + at % 7) if at % 5 else None for at, key in enumerate(keys)}
        merge(store, after, batch(number), wrong).prepare(number)
        number += 1
        merge(store, after, batch(number), dict.fromkeys(keys, b"%d" % value)).prepare(number)
        after = batch(number)
        committed.value = number
    store.close()


def test_views_beside_a_writer_in_another_process(tmp_path):
    spawning = multiprocessing.get_context("spawn")
    committed, ended = spawning.Value("q", 0), spawning.Event()
    path = tmp_path / "s"
    process = spawning.Process(target=write_batches, args=(path, committed, ended))
    process.start()
    readers = StoreReaders()
    values: list[int] = []
    try:
        while len(set(values)) < 25:
            assert process.is_alive()
            number = committed.value
            if not number:
                with pytest.raises(StateError, match="state-moving"), readers.view(path / "absent", None):
                    pass
                continue
            with readers.view(path, batch(number)) as view:
                found = content(view)
                assert len(found) == NUMBERS
                [value] = set(found.values())
                assert not_none(view.position).batch.batch_id == 2 * int(value)
                values.append(int(value))
                # The same moment, while the writer goes on.
                assert set(view.values(binary([b"%08d" % (NUMBERS - 1), b"%08d" % 7])).to_pylist()) == {value}
        assert values == sorted(values)
    finally:
        ended.set()
        process.join(30)
        readers.close()
    assert process.exitcode == 0


def test_files_that_were_replaced_are_opened_again(tmp_path):
    path = tmp_path / "s"
    readers = StoreReaders()
    for value in (b"1", b"2"):
        write_one(path, value)
        with readers.view(path, batch(1)) as view:
            assert content(view) == {b"a": value}
            shutil.rmtree(path)
            assert content(view) == {b"a": value}  # the files are gone, the map is not
        with pytest.raises(StateError, match="state-moving"), readers.view(path, batch(1)):
            pass
    readers.close()
    with pytest.raises(StateError, match="state-moving"), readers.view(path, batch(1)):
        pass


def write_one(path, value):
    store = TaskStore(path, IDENTITY)
    merge(store, None, batch(1), {b"a": value}).prepare(1)
    store.close()
