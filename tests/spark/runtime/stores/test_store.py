"""A store: prepared batches, their undo, identities, maps that grow, several processes."""

import multiprocessing
import shutil

import lmdb
import pyarrow as pa
import pytest
from tests.harness.values import not_none

from headrace.errors import StateError
from headrace.spark.runtime.stores import store_files
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, StorePosition, StoreWrites, TaskStore, boot_id

IDENTITY = StoreIdentity(changelog_topic_id="t1", schema_hash="s1", boot_id="b1")


def batch(batch_id, attempt=0, incarnation="one"):
    return BatchKey(incarnation=incarnation, batch_id=batch_id, attempt=attempt)


def position(key, offset=0):
    return StorePosition(batch=key, input_offsets={"flights-0": offset}, changelog_offset=-1)


def binary(values):
    return pa.array(values, pa.binary())


def prepare(store, after, key, keys, merge, next_offset):
    """`merge`: from a list of old values to a list of new ones."""
    batch = store.merge(after, position(key), binary(keys), lambda old: binary(merge(old.to_pylist())))
    batch.prepare(next_offset)
    return batch


def add(store, after, key, items, next_offset=5):
    def merge(old):
        return [str(int(was or b"0") + more).encode() for was, more in zip(old, items.values(), strict=True)]

    return prepare(store, after, key, list(items), merge, next_offset)


def content(store):
    return {key: int(value) for key, value in store.values()}


@pytest.fixture
def store(tmp_path):
    store = TaskStore(tmp_path / "s", IDENTITY)
    yield store
    store.close()


def test_a_committed_batch_stays(store):
    add(store, None, batch(1), {b"EWR": 3, b"JFK": 1})
    assert store.position() is None
    assert store.prepared().changelog_offset == 5
    assert store.resolve_prepared(batch(1)).batch == batch(1)
    assert content(store) == {b"EWR": 3, b"JFK": 1}
    assert store.prepared() is None


def test_an_uncommitted_batch_is_undone(store):
    add(store, None, batch(1), {b"EWR": 3})
    add(store, batch(1), batch(2), {b"EWR": 4, b"JFK": 9})
    assert content(store) == {b"EWR": 7, b"JFK": 9}
    assert store.resolve_prepared(batch(1)).batch == batch(1)
    assert content(store) == {b"EWR": 3}


def test_the_next_attempt_starts_from_the_committed_values(store):
    add(store, None, batch(1, 0), {b"EWR": 3})
    add(store, None, batch(1, 1), {b"EWR": 2})
    add(store, batch(1, 1), batch(2), {b"EWR": 1})
    store.resolve_prepared(batch(2))
    assert content(store) == {b"EWR": 3}


def test_an_update_reads_what_it_then_needs(store):
    """The first value names the next key; the read range is deleted. Undone and done again, the store is the same."""

    def follow(reader):
        [after] = reader.values(binary([b"first"])).to_pylist()
        [value] = reader.values(binary([after])).to_pylist()
        gone = reader.keys_between(b"old-", b"old.", 2)
        return StoreWrites(keys=binary([after, *gone.to_pylist()]), values=binary([value + b"0"] + [None] * len(gone)))

    add(store, None, batch(1), {b"first": 7, b"old-1": 1, b"old-2": 2, b"old-3": 3, b"old.": 4})
    prepare(store, batch(1), batch(2), [b"first"], lambda old: [b"here"], 6)
    prepare(store, batch(2), batch(3), [b"here"], lambda old: [b"5"], 7)
    before = dict(store.values())
    wanted = {b"first": b"here", b"here": b"50", b"old-3": b"3", b"old.": b"4"}
    store.update(batch(3), position(batch(4)), follow).prepare(8)
    assert dict(store.values()) == wanted
    store.resolve_prepared(batch(3))
    assert dict(store.values()) == before
    with pytest.raises(StateError, match="store-behind"):
        store.update(batch(4), position(batch(5)), follow)
    store.update(batch(3), position(batch(5)), follow).prepare(8)
    store.resolve_prepared(batch(5))
    assert dict(store.values()) == wanted
    assert store.count() == 4


def test_a_reader_takes_short_and_long_keys_in_any_order(store):
    """Long keys are stored under digests, whose order is another one."""
    keys = [b"x" * 600, b"", b"y" * 479, b"x" * 481, b"b", b"a"]
    prepare(store, None, batch(1), keys, lambda old: [str(at).encode() for at in range(len(old))], 5)
    found = []

    def read(reader):
        found.append(reader.values(binary([*keys, b"c", b"z" * 500])).to_pylist())
        return StoreWrites(keys=binary([]), values=binary([]))

    store.update(batch(1), position(batch(2)), read).prepare(None)
    assert found == [[b"0", b"1", b"2", b"3", b"4", b"5", None, None]]


def test_a_straggler_is_refused(store):
    add(store, None, batch(1, 1), {b"EWR": 3})
    with pytest.raises(StateError) as refused:
        add(store, None, batch(1, 0), {b"EWR": 3})
    assert refused.value.code == "stale-attempt"
    store.resolve_prepared(batch(1, 1))
    assert content(store) == {b"EWR": 3}


def test_a_store_at_another_position_is_refused(store):
    add(store, None, batch(1), {b"EWR": 3})
    with pytest.raises(StateError) as behind:
        add(store, batch(7), batch(8), {b"EWR": 1})
    assert behind.value.code == "store-behind"
    assert content(store) == {b"EWR": 3}  # refused means untouched: the transaction was dropped whole


def test_an_error_in_the_merge_leaves_everything(store):
    add(store, None, batch(1), {b"EWR": 3})
    with pytest.raises(ZeroDivisionError):
        prepare(store, batch(1), batch(2), [b"EWR"], lambda old: [b"%d" % (1 // 0)], 1)
    store.resolve_prepared(batch(1))
    assert content(store) == {b"EWR": 3}


def test_an_open_batch_is_invisible_and_can_be_abandoned(store):
    add(store, None, batch(1), {b"EWR": 3})
    opened = store.merge(batch(1), position(batch(2)), binary([b"EWR"]), lambda old: binary([b"9"]))
    assert content(store) == {b"EWR": 3}
    assert store.prepared().batch == batch(1)
    opened.abandon()
    assert content(store) == {b"EWR": 3}
    add(store, batch(1), batch(2, 1), {b"EWR": 1}).abandon()  # too late: it is prepared
    assert content(store) == {b"EWR": 4}


def test_a_batch_without_changes_keeps_the_place_in_the_changelog(store):
    opened = add(store, None, batch(1), {b"EWR": 3, b"JFK": 1}, next_offset=7)
    assert (opened.keys, opened.size_bytes) == (2, store.size_bytes())
    store.merge(batch(1), position(batch(2)), binary([]), lambda old: old).prepare(None)
    assert store.prepared().changelog_offset == 7
    store.resolve_prepared(batch(2))
    assert content(store) == {b"EWR": 3, b"JFK": 1}


def test_a_map_that_is_full_at_the_end_of_a_batch_grows(store, monkeypatch):
    """The commit may need room as well; what was merged is merged again, and is prepared once."""
    calls = []
    keys = [b"%06d" % n for n in range(1000)]

    def merge(old):
        calls.append(old)
        return binary(keys)

    opened = store.merge(None, position(batch(1)), binary(keys), merge)
    whole = opened._place

    def full_once(transaction, offset):
        monkeypatch.setattr(opened, "_place", whole)
        raise lmdb.MapFullError("full")

    monkeypatch.setattr(opened, "_place", full_once)
    opened.prepare(4)
    assert len(calls) == 2
    assert store.resolve_prepared(batch(1)).changelog_offset == 4
    assert (store.count(), opened.keys) == (1000, 1000)


@pytest.mark.parametrize("change", [{"changelog_topic_id": "t2"}, {"schema_hash": "s2"}, {"boot_id": "b2"}])
def test_another_identity_empties_it(tmp_path, change):
    first = TaskStore(tmp_path / "s", IDENTITY)
    add(first, None, batch(1), {b"EWR": 3})
    first.resolve_prepared(batch(1))
    first.close()
    facts = {"changelog_topic_id": "t1", "schema_hash": "s1", "boot_id": "b1"} | change
    second = TaskStore(tmp_path / "s", StoreIdentity(**facts))
    assert second.rebuilt
    assert second.position() is None
    assert content(second) == {}
    second.close()


def test_the_map_grows(tmp_path, monkeypatch):
    monkeypatch.setattr(store_files, "FIRST_MAP_BYTES", 256 * 1024)
    store = TaskStore(tmp_path / "s", IDENTITY)
    calls = []
    keys = [b"%06d" % n for n in range(20_000)]

    def merge(old):
        calls.append(old)
        return [b"x" * 50] * len(old)

    prepare(store, None, batch(1), keys, merge, 9)
    assert len(calls) > 1  # done again in a larger map
    assert not_none(store.resolve_prepared(batch(1))).changelog_offset == 9
    assert store.count() == 20_000
    store.close()


def test_long_keys_are_kept_apart(store):
    keys = [b"a" * 481, b"a" * 5000, b"a" * 480]
    prepare(store, None, batch(1), keys, lambda old: [b"1", b"2", b"3"], 1)
    store.resolve_prepared(batch(1))
    seen = []

    def merge(old):
        seen.extend(old)
        return old

    prepare(store, batch(1), batch(2), keys, merge, 1)
    assert seen == [b"1", b"2", b"3"]


def load(store, writer, items, next_offset):
    keys, values = ([pair[index] for pair in items] for index in (0, 1))
    store.load(writer, binary(keys), binary(values), next_offset)


def test_replay_and_tombstones(store):
    assert store.begin_replay(batch(0), 0, 10) == 0
    load(store, batch(0), [(b"EWR", b"1"), (b"JFK", b"2"), (b"EWR", b"3")], 3)
    load(store, batch(0), [(b"JFK", None), (b"LGA", b"4")], 5)
    assert content(store) == {b"EWR": 3, b"LGA": 4}
    assert store.position().changelog_offset == 5
    assert store.position().restoring


def test_replaced_files_are_noticed(tmp_path):
    store = TaskStore(tmp_path / "s", IDENTITY)
    assert store.is_current
    shutil.rmtree(tmp_path / "s")
    assert not store.is_current
    store.close()


def _add_elsewhere(path):
    other = TaskStore(path, IDENTITY)
    prepare(other, batch(1), batch(2), [b"%06d" % n for n in range(200_000)], lambda old: [b"y" * 200] * len(old), 3)
    other.close()


def test_another_process_may_grow_the_map(store):
    add(store, None, batch(1), {b"EWR": 3})
    worker = multiprocessing.get_context("spawn").Process(target=_add_elsewhere, args=(store.path,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert store.resolve_prepared(batch(2)).batch == batch(2)
    assert store.count() == 200_001


def test_the_boot_has_an_id():
    assert boot_id()
    assert boot_id() == boot_id()


def test_ordered_writes_keep_each_value_with_its_key() -> None:
    writes = StoreWrites.ordered(binary([b"b", b"a\x00", b"", b"a"]), binary([b"1", None, b"3", b"4"]))
    assert writes.keys.to_pylist() == [b"", b"a", b"a\x00", b"b"]
    assert writes.values.to_pylist() == [b"3", b"4", None, b"1"]
    assert StoreWrites.ordered(writes.keys, writes.values) == writes
