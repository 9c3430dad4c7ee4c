"""Delta tables with one row for each key: the newest row of each key is there once, whatever dies."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness.s3_server import BUCKET
from tests.harness.sink_stories import (
    INPUT,
    LATER,
    TASK,
    Died,
    KeyedChanges,
    apply_changes,
    changes_table,
    owner_resolves,
    schema_json,
    write_part,
)
from tests.longer import LONG

from headrace.spark.sinks import delta, delta_log
from headrace.spark.sinks.delta_merge import DeltaMergeSink

SCHEMA = schema_json([("Größe", "string"), ("n", "long")])
ARROW = pa.schema([("Größe", pa.string()), ("n", pa.int64())])
KEYS = ("EWR", None, 'a/b "%[x]', "JFK")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(delta, "PAUSE_S", 0.0)


def sink_in(directory, **given):
    place = str(directory / "table")
    return DeltaMergeSink(place, url=place, storage_options={}, schema_json=SCHEMA, key=("Größe",), **given)


def written(sink, number):
    """The part of micro-batch `number`: rows of three keys, of which one changes twice."""
    keys = [KEYS[(number + at) % len(KEYS)] for at in (0, 1, 2, 0)]
    return write_part(sink, number, pa.table({"Größe": keys, "n": [4 * number + at for at in range(4)]}, schema=ARROW))


def expected(batches):
    newest: dict[str | None, int] = {}
    for number in batches:
        newest |= {KEYS[(number + at) % len(KEYS)]: 4 * number + at for at in (1, 2)}
        newest[KEYS[number % len(KEYS)]] = 4 * number + 3
    return newest


def rows(sink):
    table = sink._open()
    found = [] if table is None else table.to_pyarrow_table().to_pylist()
    newest = {row["Größe"]: row["n"] for row in found}
    assert len(newest) == len(found), "a key has two rows"
    return newest


@pytest.mark.parametrize("partitions", [(), ("Größe",)])
def test_rows_replace_each_other_in_one_version(tmp_path, partitions):
    sink = sink_in(tmp_path, table_partitions=partitions)
    for number in range(3):
        sink.commit([written(sink, number)])
    assert sink.roll([TASK], LATER) == []
    assert rows(sink) == expected(range(3))
    sink.commit([written(sink, 3)])
    sink.roll([TASK], LATER)
    assert rows(sink) == expected(range(4))
    table = DeltaTable(sink.url)
    assert table.version() == 2, "created, and two rolls"
    assert table.transaction_version(f"headrace/g/flights-3/{INPUT}") == 40
    assert sink.takes_updates


def test_a_table_in_s3(tmp_path, s3):
    s3.fail([])
    sink = replace(
        sink_in(tmp_path), url=f"s3://{BUCKET}/{str(tmp_path).strip('/')}", storage_options=s3.delta_options()
    )
    for number in range(2):
        sink.commit([written(sink, number)])
        sink.roll([TASK], LATER)
    assert rows(sink) == expected(range(2))


def test_columns_that_only_the_table_has_keep_their_values(tmp_path):
    sink = sink_in(tmp_path)
    write_deltalake(sink.path, pa.table({"Größe": ["EWR", "X"], "n": [0, -1], "city": ["Newark", None]}))
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    assert rows(sink) == {"X": -1, **expected([0])}
    cities = {row["Größe"]: row["city"] for row in DeltaTable(sink.path).to_pyarrow_table().to_pylist()}
    assert cities["EWR"] == "Newark"


def test_files_and_log_are_on_the_disk_before_the_parts_are_forgotten(tmp_path, monkeypatch):
    synced: list[str] = []
    monkeypatch.setattr(delta_log, "sync_file", lambda path: synced.append(str(path)))
    sink = sink_in(tmp_path, table_partitions=("Größe",))
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    assert set(DeltaTable(sink.path).file_uris()) <= set(synced)
    assert any(name.endswith("00000000000000000001.json") for name in synced)


def test_columns_that_the_table_lacks_are_added_where_it_is_allowed(tmp_path):
    write_deltalake(str(tmp_path / "table"), pa.table({"Größe": ["EWR", "X"]}))
    sink = sink_in(tmp_path, add_columns=True)
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    assert rows(sink) == {"X": None, **expected([0])}


class Merges:
    """Commits of rolls, each with the next event."""

    def __init__(self, events):
        self._events, self._append, self.strangers = iter(events), DeltaMergeSink._append, 0

    def append(self, sink, table, files, versions):
        event = next(self._events, "well")
        if event == "refused":
            raise OSError("refused")
        if event == "dies before":
            raise Died
        if event == "stranger":  # another program adds a row of another key in between
            self.strangers += 1
            write_deltalake(
                sink.path, pa.table({"Größe": [f"stranger-{self.strangers}"], "n": [0]}, schema=ARROW), mode="append"
            )
        if event == "compacted":  # by another program, in between
            DeltaTable(sink.path).optimize.compact()
        if event == "zombie":
            self._append(sink, DeltaTable(sink.path), files, versions)
        self._append(sink, table, files, versions)
        if event == "unknown":
            raise OSError("unknown")
        if event == "dies behind":
            raise Died


EVENTS = st.lists(
    st.sampled_from(["well", "refused", "unknown", "dies before", "dies behind", "stranger", "compacted", "zombie"]),
    max_size=12,
)


# The changes of keys in a micro-batch, whether its commit counts, and whether a roll follows.
CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=6)
LAST = ([("JFK", 1)], True, True)
BATCHES = st.lists(st.tuples(CHANGES, st.booleans(), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=200 if LONG else 8, deadline=None)
@given(events=EVENTS, batches=BATCHES)
def test_random_histories_against_a_dictionary(tmp_path_factory, events, batches):
    """Each committed batch counts once and in its order; a batch that does not count changes no row."""
    sink, log, rolled = sink_in(tmp_path_factory.mktemp("t")), [], 0
    committed: list[KeyedChanges] = []
    with pytest.MonkeyPatch.context() as patch:
        merges = Merges(events)
        patch.setattr(DeltaMergeSink, "_append", lambda sink, *roll: merges.append(sink, *roll))
        patch.setattr(DeltaMergeSink, "_sync", lambda *_: None)
        patch.setattr(delta, "PAUSE_S", 0.0)
        for number, (changes, counts, rolls) in enumerate([*batches, LAST]):
            part = write_part(sink, number, changes_table(changes, ARROW))
            if not counts:
                sink.discard([part])
                continue
            log.append(part)
            committed.append(changes)
            sink.commit([part])
            while rolls:
                try:
                    assert sink.roll([TASK], LATER) == []
                    rolled = len(log)
                    break
                except Died:
                    owner_resolves(sink, log)
            own = {key: n for key, n in rows(sink).items() if not str(key).startswith("stranger")}
            assert own == apply_changes(committed[:rolled])
    assert sum(str(key).startswith("stranger") for key in rows(sink)) == merges.strangers


def test_a_roll_that_deletes_rows_alone_moves_the_positions(tmp_path):
    """Also where no row has any of its keys: the roll is an entry of the log, and the next one follows it."""
    sink = sink_in(tmp_path)
    batches: list[KeyedChanges] = [[(None, 1), ("EWR", 2)], [("EWR", None), (None, None)], [("X", None)], [("JFK", 3)]]
    for number, changes in enumerate(batches):
        sink.commit([write_part(sink, number, changes_table(changes, ARROW))])
        sink.roll([TASK], LATER)
        assert rows(sink) == apply_changes(batches[: number + 1])
        assert DeltaTable(sink.url).transaction_version(f"headrace/g/flights-3/{INPUT}") == 10 * (number + 1)


def test_rows_of_a_program_without_deletions_wait_beside_others(tmp_path):
    """Parts of two programs, of which one has a filter, become two rolls in their order."""
    sink = sink_in(tmp_path)
    sink.commit([written(sink, 0)])
    sink.commit([write_part(sink, 1, changes_table([("EWR", None)], ARROW))])
    sink.roll([TASK], LATER)
    assert rows(sink) == {key: n for key, n in expected([0]).items() if key != "EWR"}


def test_positions_are_in_the_entry_that_changes_the_rows(tmp_path):
    sink = sink_in(tmp_path)
    for number in range(2):
        sink.commit([written(sink, number)])
        sink.roll([TASK], LATER)
    entry = Path(sink.path, "_delta_log", "00000000000000000002.json").read_text().splitlines()
    kinds = {kind for line in entry for kind in json.loads(line)}
    assert {"add", "remove", "txn"} <= kinds
