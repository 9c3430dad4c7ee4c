"""A store: prepared batches, their undo, identities, maps that grow, several processes."""

import multiprocessing
import shutil

import pyarrow as pa
import pytest

from penstock.errors import StateError
from penstock.spark.runtime import store_files
from penstock.spark.runtime.store import BatchKey, StoreIdentity, StorePosition, TaskStore, boot_id

IDENTITY = StoreIdentity(changelog_topic_id="t1", schema_hash="s1", boot_id="b1")


def batch(batch_id, attempt=0, incarnation="one"):
    return BatchKey(incarnation=incarnation, batch_id=batch_id, attempt=attempt)


def position(key, offset=0):
    return StorePosition(batch=key, input_offsets={"flights-0": offset}, changelog_offset=-1)


def add(store, after, key, items, next_offset=5):
    def merge(old):
        return [str(int(was or b"0") + more).encode() for was, more in zip(old, items.values(), strict=True)]

    store.prepare(after, position(key), list(items), merge, lambda: next_offset)


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
    assert store.settle(batch(1)).batch == batch(1)
    assert content(store) == {b"EWR": 3, b"JFK": 1}
    assert store.prepared() is None


def test_a_batch_nobody_committed_is_undone(store):
    add(store, None, batch(1), {b"EWR": 3})
    add(store, batch(1), batch(2), {b"EWR": 4, b"JFK": 9})
    assert content(store) == {b"EWR": 7, b"JFK": 9}
    assert store.settle(batch(1)).batch == batch(1)
    assert content(store) == {b"EWR": 3}


def test_the_next_attempt_starts_from_the_committed_values(store):
    add(store, None, batch(1, 0), {b"EWR": 3})
    add(store, None, batch(1, 1), {b"EWR": 2})
    add(store, batch(1, 1), batch(2), {b"EWR": 1})
    store.settle(batch(2))
    assert content(store) == {b"EWR": 3}


def test_a_straggler_is_refused(store):
    add(store, None, batch(1, 1), {b"EWR": 3})
    with pytest.raises(StateError) as refused:
        add(store, None, batch(1, 0), {b"EWR": 3})
    assert refused.value.code == "stale-attempt"
    store.settle(batch(1, 1))
    assert content(store) == {b"EWR": 3}


def test_a_store_that_stands_elsewhere_says_so(store):
    add(store, None, batch(1), {b"EWR": 3})
    with pytest.raises(StateError) as behind:
        add(store, batch(7), batch(8), {b"EWR": 1})
    assert behind.value.code == "store-behind"
    assert content(store) == {b"EWR": 3}  # refused means untouched: the transaction was dropped whole


def test_an_error_in_the_merge_leaves_everything(store):
    add(store, None, batch(1), {b"EWR": 3})
    with pytest.raises(ZeroDivisionError):
        store.prepare(batch(1), position(batch(2)), [b"EWR"], lambda old: [b"%d" % (1 // 0)], lambda: 1)
    store.settle(batch(1))
    assert content(store) == {b"EWR": 3}


@pytest.mark.parametrize("change", [{"changelog_topic_id": "t2"}, {"schema_hash": "s2"}, {"boot_id": "b2"}])
def test_another_identity_empties_it(tmp_path, change):
    first = TaskStore(tmp_path / "s", IDENTITY)
    add(first, None, batch(1), {b"EWR": 3})
    first.settle(batch(1))
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
    store.prepare(None, position(batch(1)), keys, lambda old: calls.append(1) or [b"x" * 50] * len(old), lambda: 9)
    assert len(calls) > 1  # done again in a larger map
    assert store.settle(batch(1)).changelog_offset == 9
    assert store.count() == 20_000
    store.close()


def test_long_keys_are_kept_apart(store):
    keys = [b"a" * 481, b"a" * 5000, b"a" * 480]
    store.prepare(None, position(batch(1)), keys, lambda old: [b"1", b"2", b"3"], lambda: 1)
    store.settle(batch(1))
    seen = []
    store.prepare(batch(1), position(batch(2)), keys, lambda old: seen.extend(old) or old, lambda: 1)
    assert seen == [b"1", b"2", b"3"]


def load(store, writer, items, next_offset):
    keys, values = ([pair[index] for pair in items] for index in (0, 1))
    store.load(writer, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), next_offset)


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
    store_module_keys = [b"%06d" % n for n in range(200_000)]
    other.prepare(batch(1), position(batch(2)), store_module_keys, lambda old: [b"y" * 200] * len(old), lambda: 3)
    other.close()


def test_another_process_may_grow_the_map(store):
    add(store, None, batch(1), {b"EWR": 3})
    worker = multiprocessing.get_context("spawn").Process(target=_add_elsewhere, args=(store.path,))
    worker.start()
    worker.join(60)
    assert worker.exitcode == 0
    assert store.settle(batch(2)).batch == batch(2)
    assert store.count() == 200_001


def test_the_boot_has_an_id():
    assert boot_id()
    assert boot_id() == boot_id()
