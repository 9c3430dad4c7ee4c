"""Older formats, files that are no stores, replays that lost their store, directories, newest values."""

import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StateError
from headrace.spark.runtime import store_files, store_pages
from headrace.spark.runtime.bulk_load import name_of_key, newest_values
from headrace.spark.runtime.replay import committed_position
from headrace.spark.runtime.rows import decode_rows
from headrace.spark.runtime.state_directory import StateDirectory
from headrace.spark.runtime.store import BatchKey, StoreIdentity, StorePosition, TaskStore, position_on_disk

FIXTURES = Path(__file__).parent / "fixtures"
OLDER = StoreIdentity(changelog_topic_id="topic-1", schema_hash="schema-1", boot_id="boot-1")
IDENTITY = StoreIdentity(changelog_topic_id="t", schema_hash="s", boot_id="b")


def batch(batch_id, incarnation="older"):
    return BatchKey(incarnation=incarnation, batch_id=batch_id)


def binary(values):
    return pa.array(values, pa.binary())


@pytest.fixture(params=[1, 2])
def older(tmp_path, request):
    """Files that an earlier release wrote: batch 1 committed, batch 2 prepared."""
    shutil.copytree(FIXTURES / f"store-format-{request.param}", tmp_path / "s")
    return tmp_path / "s"


def rows(store):
    values = dict(store.values())
    counts, sums = decode_rows(binary(list(values.values())), [pa.int64(), pa.float64()])
    return {key.decode(): (n.as_py(), x.as_py()) for key, n, x in zip(values, counts, sums, strict=True)}


def test_a_store_of_an_older_format_is_read_and_brought_over(older):
    store = TaskStore(older, OLDER)
    assert store.rebuilt is None
    assert rows(store) == {"EWR": (7, 2.5), "JFK": (1, None), "LGA": (4, 0.0)}
    assert store.position().batch == batch(1)
    assert store.prepared().input_offsets == {"flights-0": 20}
    assert store.settle(batch(1)).changelog_offset == 2, "the undo record of the older format is read"
    assert rows(store) == {"EWR": (3, 1.5), "JFK": (1, None)}
    store.close()
    assert position_on_disk(older, OLDER).changelog_offset == 2, "sealed by now"
    again = TaskStore(older, OLDER)
    assert rows(again) == {"EWR": (3, 1.5), "JFK": (1, None)}, "once"
    again.close()


def test_a_long_key_of_format_2_is_found_again(tmp_path):
    shutil.copytree(FIXTURES / "store-format-2", tmp_path / "s")
    store = TaskStore(tmp_path / "s", OLDER)
    assert store.count() == 4
    seen = []
    position = StorePosition(batch=batch(3), input_offsets={}, changelog_offset=0)
    store.merge(batch(1), position, binary([b"L" * 600, b"M" * 600]), lambda old: seen.append(old) or old).abandon()
    [count, _] = decode_rows(seen[0].slice(0, 1), [pa.int64(), pa.float64()])
    assert count.to_pylist() == [9]
    assert seen[0].is_null().to_pylist() == [False, True]
    store.close()


def test_an_older_store_of_another_topic_is_emptied(older):
    store = TaskStore(older, replace(OLDER, changelog_topic_id="topic-2"))
    assert "changelog topic" in store.rebuilt
    assert (store.count(), dict(store.values()), store.position()) == (0, {}, None)
    store.close()


def test_the_prepared_batch_of_an_older_format_may_be_the_committed_one(older):
    store = TaskStore(older, OLDER)
    assert committed_position(store, {"flights-0": 20}, trust_prepared=True)
    assert rows(store)["LGA"] == (4, 0.0)
    store.close()


@pytest.mark.parametrize("older", [1], indirect=True)
def test_files_of_format_1_are_not_looked_at_without_being_sealed(older):
    assert position_on_disk(older, OLDER) is None


def filled(path, count=2000):
    store = TaskStore(path, IDENTITY)
    writer = batch(1)
    store.begin_replay(writer, 0, count)
    keys = [b"%06d" % n for n in range(count)]
    store.load(writer, binary(keys), binary(keys), count)
    return store


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.1, 0.0])
def test_a_truncated_file_is_set_aside_before_it_is_mapped(tmp_path, kept):
    filled(tmp_path / "s").close()
    data = tmp_path / "s" / "data.mdb"
    os.truncate(data, int(data.stat().st_size * kept))
    assert position_on_disk(tmp_path / "s", IDENTITY) is None
    store = TaskStore(tmp_path / "s", IDENTITY)
    assert store.position() is None
    assert store.count() == 0
    assert (store.rebuilt is None) == (kept == 0.0), "an empty file is a new store"
    store.close()


def undone(path):
    """A store after a batch that was killed: the next attempt undoes it. Whether a page was counted, never written."""
    for seed in range(400):
        chance = random.Random(seed)
        store = TaskStore(path, IDENTITY)
        for after, key, count in ((None, batch(1), 20), (batch(1), batch(2), 1000), (batch(1), batch(3), 5)):
            keys = sorted({b"%06d" % chance.randrange(2000) for _ in range(count)})
            position = StorePosition(batch=key, input_offsets={}, changelog_offset=0)
            values = binary([b"x" * 20] * len(keys))
            store.merge(after, position, binary(keys), lambda _, values=values: values).prepare(1)
        pages, page_bytes = store._environment.lmdb.info()["last_pgno"] + 1, store._environment.lmdb.stat()["psize"]
        if (path / "data.mdb").stat().st_size < pages * page_bytes:
            return store
        store.close()
        shutil.rmtree(path)
    raise AssertionError("LMDB writes every page now: this way to a short file is closed")


def test_a_file_that_lacks_only_free_pages_is_whole(tmp_path):
    store = undone(tmp_path / "s")
    kept = dict(store.values())
    store.close()
    assert position_on_disk(tmp_path / "s", IDENTITY).batch == batch(1)
    again = TaskStore(tmp_path / "s", IDENTITY)
    assert again.rebuilt is None
    assert dict(again.values()) == kept
    again.close()
    data = tmp_path / "s" / "data.mdb"
    os.truncate(data, 4 * 4096)  # and now some that are in use, or the list of free ones itself
    last = TaskStore(tmp_path / "s", IDENTITY)
    assert "its pages need" in last.rebuilt
    last.close()


def changed(store, _keys):
    for number in range(2, 12):
        some = [b"%06d" % n for n in range(0, 500, number)]
        store.begin_replay(batch(number), 0, 500)
        store.load(batch(number), binary(some), binary([None] * len(some)), 500)


def emptied(store, keys):
    """So many pages at once that their numbers fill pages of their own."""
    store.begin_replay(batch(2), keys + 1, keys + 2)


def pinned(store, keys):
    """A reader holds what 300 transactions free, so the list becomes a tree."""
    with store._environment.lmdb.begin():
        for number in range(2, 302):
            store.place(batch(number), {}, over=store.position())


@pytest.mark.parametrize(("change", "keys"), [(changed, 500), (emptied, 100_000), (pinned, 10)])
def test_every_page_is_in_use_or_free(tmp_path, change, keys):
    """What `store_pages` reads of the free list, held against LMDB's own counts."""
    store = filled(tmp_path / "s", keys)
    change(store, keys)
    environment = store._environment.lmdb
    with environment.begin() as snapshot, (tmp_path / "s" / "data.mdb").open("rb") as file:
        trees = [snapshot.stat(store._meta), snapshot.stat(store._blocks), environment.stat()]
        used = sum(tree[kind] for tree in trees for kind in ("branch_pages", "leaf_pages", "overflow_pages"))
        found = store_pages.free_list(file.fileno(), snapshot.id(), environment.stat()["psize"])
        assert len(set(found.free)) == len(found.free) > 0
        assert (found.own_pages > 1) == (change is not changed), "a list of one page, of several"
        assert 2 + used + found.own_pages + len(found.free) == environment.info()["last_pgno"] + 1
    store.close()


def test_a_condemned_store_is_not_current_and_is_replaced(tmp_path):
    store = filled(tmp_path / "s")
    store.condemn("a row of it was none")
    assert not store.is_current
    store.close()
    again = TaskStore(tmp_path / "s", IDENTITY)
    assert again.rebuilt == "a row of it was none"
    assert again.is_current
    assert (tmp_path / "s.corrupt").is_dir()
    again.close()


def test_an_opening_that_killed_two_processes_is_not_tried_again(tmp_path):
    filled(tmp_path / "s").close()
    for died in (1, 2):
        (tmp_path / "s" / "opening").write_text(str(died))
        store = TaskStore(tmp_path / "s", IDENTITY)
        assert (store.rebuilt is not None) == (died == store_files.DEADLY_OPENINGS)
        store.close()


def test_a_merge_that_meets_no_row_condemns(tmp_path):
    store = filled(tmp_path / "s")
    store.place(batch(1), {}, over=store.position())

    def merge(_old):
        raise StateError("state-corrupt", "a stored row is shorter than it must be")

    position = StorePosition(batch=batch(2), input_offsets={}, changelog_offset=9)
    with pytest.raises(StateError):
        store.merge(batch(1), position, binary([b"000001"]), merge)
    assert not store.is_current
    store.close()


def test_a_replay_that_lost_the_store_writes_nothing(tmp_path):
    store = filled(tmp_path / "s", 10)
    other = batch(7, "another")
    assert store.begin_replay(other, 0, 10) == 10
    with pytest.raises(StateError) as late:
        store.load(batch(1), binary([b"late"]), binary([b"late"]), 11)
    assert late.value.code == "store-taken"
    stands = store.position()
    with pytest.raises(StateError) as late:
        store.place(batch(8), {"t-0": 5}, over=replace(stands, batch=batch(1)))
    assert late.value.code == "store-taken"
    store.place(batch(8), {"t-0": 5}, over=stands)
    with pytest.raises(StateError):
        store.load(other, binary([b"late"]), binary([b"late"]), 11)
    assert store.count() == 10
    assert store.position().changelog_offset == 10
    store.close()


@pytest.mark.parametrize(("first", "end", "start"), [(0, 20, 10), (11, 20, 11), (0, 9, 0)])
def test_a_store_outside_of_the_log_begins_anew(tmp_path, first, end, start):
    store = filled(tmp_path / "s", 10)
    assert store.begin_replay(batch(2), first, end) == start
    assert store.count() == (10 if start == 10 else 0)
    assert (store.rebuilt is None) == (start == 10)
    store.close()


changes = st.lists(st.tuples(st.binary(max_size=12), st.none() | st.binary(max_size=4)), max_size=60)


@given(changes, st.binary(max_size=500))
def test_newest_values_are_those_of_a_dictionary(items, prefix):
    keys, values = binary([prefix + key for key, _ in items]), binary([value for _, value in items])
    wanted = {name_of_key(prefix + key): value for key, value in items}
    names, newest = (column.to_pylist() for column in newest_values(keys, values))
    assert dict(zip(names, newest, strict=True)) == wanted
    assert names == sorted(wanted)


def test_records_without_a_key_change_nothing():
    assert newest_values(binary([None, b"a", None]), binary([b"x", b"y", None])) == (binary([b"ka"]), binary([b"y"]))
    assert newest_values(binary([None]), binary([b"x"])) == (binary([]), binary([]))


def test_newest_values_of_a_slice():
    keys, values = binary([b"a", b"b", b"c", b"b"]), binary([b"1", b"2", b"3", b"4"])
    assert newest_values(keys[1:], values[1:]) == (binary([b"kb", b"kc"]), binary([b"4", b"3"]))


def test_stores_of_tasks_that_went_away_are_deleted_when_nobody_wrote_for_long(tmp_path):
    directory = StateDirectory(tmp_path, "group")
    for task in ("counts_0", "counts_1", "counts_2"):
        (tmp_path / task / "by-origin").mkdir(parents=True)
        (tmp_path / task / "by-origin" / "data.mdb").write_bytes(b"x" * 10_000)
    (tmp_path / "counts_0" / "by-origin.corrupt").mkdir()
    for path in (tmp_path / "counts_1", tmp_path / "counts_1" / "by-origin" / "data.mdb"):
        os.utime(path, (time.time() - 900, time.time() - 900))
    assert directory.tasks(["counts"]) == [("counts", 0), ("counts", 1), ("counts", 2)]
    assert directory.disk_bytes() >= 30_000
    [(gone, freed)] = directory.clean_up([("counts", 0)], 600.0)
    assert (gone, freed > 9_000) == (("counts", 1), True)
    assert directory.tasks(["counts"]) == [("counts", 0), ("counts", 2)], "the other was written to just now"
    assert [task for task, _ in directory.clean_up([("counts", 0)], -1.0)] == [("counts", 2)]
    assert not (tmp_path / "counts_0" / "by-origin.corrupt").exists()
    assert directory.tasks(["other"]) == []
    directory.release()


def test_a_directory_of_a_later_format_is_refused(tmp_path):
    StateDirectory(tmp_path, "group").release()
    assert StateDirectory(tmp_path, "group").release() is None
    facts = {"format": 2, "group": "group"}
    from headrace.spark.runtime import state_directory

    (tmp_path / "state.json").write_text(
        f'{{"format": 2, "group": "group", "checksum": "{state_directory._checksum(facts)}"}}'
    )
    with pytest.raises(StateError) as refused:
        StateDirectory(tmp_path, "group")
    assert refused.value.code == "state-format"
    (tmp_path / "state.json").write_text('{"format": 2, "group": "group", "checksum": "x"}')
    StateDirectory(tmp_path, "group").release()  # unreadable: written anew, with a warning


class Restoring:
    """A running application of which only its restores are looked at."""

    def __init__(self):
        self.now = {}

    def restoring(self):
        return self.now


def test_bars_come_with_a_long_restore_and_go_with_it(capsys):
    from headrace.spark.restore_bar import SHOWN_AFTER, RestoreBar

    app = Restoring()
    bar = RestoreBar(app, is_terminal=True)
    app.now = {("counts", 1): (1500, 500, 750_000.0)}
    for _ in range(SHOWN_AFTER - 1):
        bar.look()
    assert capsys.readouterr().err == ""
    bar.look()
    app.now = {}
    bar.look()
    shown = capsys.readouterr()
    assert "restoring counts_1" in shown.err
    assert "1500/2000" in shown.err.replace(" ", "")
    assert shown.out == ""
    bar.close()


def test_an_id_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty `process.id`, as a power cut left it, made all such instances one process to the assignor."""
    directory = StateDirectory(tmp_path, "group")

    def refuse(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", refuse)
        with pytest.raises(OSError, match="No space"):
            _ = directory.process_id
    assert not (tmp_path / "process.id").exists()
    kept = directory.process_id
    assert len(kept) == 36
    assert directory.process_id == kept
    directory.release()
