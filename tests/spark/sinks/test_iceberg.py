"""Iceberg tables of a catalog: a roll is in the table once, whatever dies and whoever commits it."""

import contextlib
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import StringType
from tests.harness.iceberg_tables import TABLE, catalog_in, catalog_in_store, create_table
from tests.harness.s3_server import SECRET
from tests.harness.sink_stories import (
    INPUT,
    LATER,
    TASK,
    Died,
    KeyedChanges,
    apply_changes,
    changes_table,
    check_foreign_journal,
    check_history,
    check_journal_behind_the_table,
    check_rows_that_moved_no_input,
    expected_numbers,
    owner_resolves,
    schema_json,
    write_part,
)
from tests.longer import LONG

from headrace.errors import SinkError
from headrace.spark.sinks import iceberg
from headrace.spark.sinks.iceberg import IcebergSink, local_directory, open_table
from headrace.spark.sinks.interface import SinkPart

FIELDS = (("n", "long"), ("origin", "string"), ("at", "timestamp"))
SCHEMA = schema_json(FIELDS)
ARROW = pa.schema([("n", pa.int64()), ("origin", pa.string()), ("at", pa.timestamp("us", "UTC"))])
ORIGINS = ("EWR", None, "a/b ü%[x]")
DAY_US = 86_400_000_000


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(iceberg, "PAUSE_S", 0.0)


@pytest.fixture
def sink(tmp_path):
    return sink_in(tmp_path)


def sink_in(directory: Path, schema: pa.Schema = ARROW) -> IcebergSink:
    """A sink and its new table, in a catalog of its own."""
    properties = catalog_in(directory)
    place = str(local_directory(create_table(properties, schema)))
    return IcebergSink(place, table=TABLE, catalog="default", catalog_properties=properties, schema_json=SCHEMA)


def table_of(sink):
    return open_table(sink.catalog, sink.table, sink.catalog_properties)


def written(sink, number, *, moves=True, schema=ARROW, task=TASK):
    """The part of micro-batch `number`: rows 3 * number and two more, each of another day."""
    columns = {
        "n": pa.array([3 * number + at for at in range(3)]),
        "origin": pa.array(list(ORIGINS)),
        "at": pa.array([day * DAY_US + number for day in range(3)]).cast(pa.timestamp("us", "UTC")),
    }
    rows = pa.table({name: columns[name] for name in schema.names}).cast(schema)
    return write_part(sink, number, rows, moves=moves, task=task)


def numbers(sink):
    return Counter(table_of(sink).scan().to_arrow()["n"].to_pylist())


@pytest.mark.parametrize("transform", [None, IdentityTransform(), DayTransform()])
def test_rows_and_positions_become_one_snapshot(sink, transform):
    if transform is not None:
        with table_of(sink).update_spec() as update:
            update.add_field("at", transform)
    for number in range(3):
        sink.commit([written(sink, number)])
    assert sink.roll([TASK], 0) == [TASK]
    assert numbers(sink) == Counter()
    for _ in range(2):
        assert sink.roll([TASK], LATER) == []
    table = table_of(sink)
    assert len(table.metadata.snapshots) == 1
    rows = table.scan().to_arrow()
    assert sorted(rows["n"].to_pylist()) == list(range(9))
    assert Counter(rows["origin"].to_pylist()) == Counter(dict.fromkeys(ORIGINS, 3))
    assert rows["at"].combine_chunks().is_null().sum().as_py() == 0
    application = "headrace/g/flights-3"
    own = {name: at for name, at in table.properties.items() if name.startswith("headrace/")}
    assert own == {f"{application}/{INPUT}": "30", application: "1"}, "the idle input did not move"
    assert sink.positions(TASK) == {INPUT: 30, "idle-3@id": 7}
    assert len(sink.files()) == {None: 1, "identity": 9, "day": 3}[None if transform is None else str(transform)]


def test_rows_that_moved_no_input_are_written_once(sink):
    check_rows_that_moved_no_input(sink, partial(written, sink), partial(numbers, sink))


def test_positions_follow_a_table_that_is_ahead_of_the_journal(sink):
    check_journal_behind_the_table(sink, partial(written, sink))


def test_a_journal_of_another_time_is_refused(sink):
    check_foreign_journal(sink, partial(written, sink), partial(numbers, sink))


def test_a_lost_race_is_not_repeated_without_the_positions(sink):
    """pyiceberg repeats a commit that lost a race by itself; two owners of a task would both append the roll."""
    sink.commit([written(sink, 0)])
    directory = sink.directory_of(TASK)
    first, second = table_of(sink), table_of(sink)
    reached = {f"headrace/g/flights-3/{INPUT}": "10"}
    iceberg.commit_rows(first, [directory / "x.0.0"], reached, "one")
    with pytest.raises(OSError, match="CommitFailed"):
        iceberg.commit_rows(second, [directory / "x.0.0"], reached, "two")
    assert numbers(sink) == expected_numbers([0])
    assert "commit.retry.num-retries" not in table_of(sink).properties


class Commits:
    """Commits of the catalog, each with the next event."""

    def __init__(self, sink, events):
        self.sink, self._events, self.strangers = sink, iter(events), 0
        self._append, self._commit, self._event = iceberg.commit_rows, SqlCatalog.commit_table, "well"

    def append_rows(self, table, *roll):
        event = next(self._events, "well")
        if event == "stranger":  # another program appends in between, and the handle is old
            self.strangers += 1
            table_of(self.sink).append(pa.table({"n": [-self.strangers]}))
        if event == "zombie":  # an earlier owner, whose lock the file system has lost, commits the same roll
            self._append(table_of(self.sink), *roll)
        self._event = event
        self._append(table, *roll)

    def commit_table(self, *change):
        event, self._event = self._event, "well"
        if event == "refused":
            raise CommitFailedException("refused")
        if event == "dies before":
            raise Died
        done = self._commit(*change)
        if event == "unknown":
            raise ConnectionResetError("unknown")
        if event == "dies behind":
            raise Died
        return done


EVENTS = st.lists(
    st.sampled_from(["well", "refused", "unknown", "dies before", "dies behind", "stranger", "zombie"]), max_size=14
)
BATCHES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=300 if LONG else 15, deadline=None)
@given(events=EVENTS, batches=BATCHES)
def test_random_histories_against_a_plain_log(tmp_path_factory, events, batches):
    """Each committed batch is in the table once, and readers never see a part of one that is not committed."""
    sink = sink_in(tmp_path_factory.mktemp("t"))
    with pytest.MonkeyPatch.context() as patch:
        commits = Commits(sink, events)
        patch.setattr(iceberg, "commit_rows", commits.append_rows)
        patch.setattr(SqlCatalog, "commit_table", lambda *change: commits.commit_table(*change))
        patch.setattr(iceberg, "PAUSE_S", 0.0)
        check_history(sink, partial(written, sink), partial(numbers, sink), batches, lambda: commits.strangers)


def test_maintenance_by_others_keeps_the_positions(sink):
    """Snapshots expire and rows are rewritten; the next roll still knows what the table has."""
    for number in range(3):
        sink.commit([written(sink, number)])
        sink.roll([TASK], LATER)
    table = table_of(sink)
    table.overwrite(table.scan().to_arrow())
    newest = table_of(sink).current_snapshot().snapshot_id
    expired = [one.snapshot_id for one in table_of(sink).metadata.snapshots if one.snapshot_id != newest]
    table_of(sink).maintenance.expire_snapshots().by_ids(expired).commit()
    assert len(table_of(sink).metadata.snapshots) == 1
    assert sink.positions(TASK)[INPUT] == 30
    sink.commit([written(sink, 3)])
    sink.roll([TASK], LATER)
    assert numbers(sink) == expected_numbers([0, 1, 2, 3])


def test_a_roll_is_on_the_disk_before_its_parts_are_forgotten(sink, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(iceberg, "sync_file", synced.append)
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    table = table_of(sink)
    [snapshot] = table.metadata.snapshots
    [manifest] = snapshot.manifests(table.io)
    names = [table.metadata_location, snapshot.manifest_list, manifest.manifest_path, *sink.files()]
    assert sorted(map(str, synced)) == sorted(name.removeprefix("file://") for name in names)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (pa.schema([("n", pa.int64()), ("origin", pa.string())]), 'no column "at"'),
        (ARROW.set(0, pa.field("n", pa.int32())), '"n" is int32 in the table and int64'),
        (ARROW.set(2, pa.field("at", pa.timestamp("us"))), '"at" is timestamp'),
        (ARROW.set(0, pa.field("n", pa.int64(), nullable=False)), '"n" is required'),
    ],
)
def test_a_table_with_other_columns_is_refused(tmp_path, schema, why):
    with pytest.raises(SinkError, match=why) as raised:
        sink_in(tmp_path, schema).check()
    assert raised.value.code == "sink-refused"


def test_columns_that_only_the_table_has_are_null(tmp_path):
    sink = sink_in(tmp_path, ARROW.append(pa.field("more", pa.string())))
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    assert table_of(sink).scan().to_arrow()["more"].to_pylist() == [None] * 3


def test_columns_that_the_table_lacks_are_added_where_it_is_allowed(tmp_path, monkeypatch):
    """The check does not change the table, a roll does, also where another instance adds the column first."""
    sink = sink_in(tmp_path, ARROW.remove(1))
    with pytest.raises(SinkError, match='no column "origin"') as raised:
        sink.check()
    assert "add_columns=True" in raised.value.fix
    wide = replace(sink, add_columns=True)
    wide.check()
    assert table_of(sink).schema().column_names == ["n", "at"]
    wide.commit([written(wide, 0)])
    add, races = iceberg.add_missing_columns, iter([True])

    def race(table, columns):
        if next(races, False):
            add(table_of(sink), columns)
        return add(table, columns)

    monkeypatch.setattr(iceberg, "add_missing_columns", race)
    assert wide.roll([TASK], LATER) == []
    assert numbers(sink) == expected_numbers([0])
    assert Counter(table_of(sink).scan().to_arrow()["origin"].to_pylist()) == Counter(ORIGINS)
    assert table_of(sink).schema().column_names == ["n", "at", "origin"]


def test_rows_are_divided_into_buckets(sink):
    with table_of(sink).update_spec() as update:
        update.add_field("n", BucketTransform(4))
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    assert numbers(sink) == expected_numbers([0])


def test_a_table_that_was_created_again_is_refused(sink):
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    catalog = load_catalog("default", **sink.catalog_properties)
    catalog.drop_table("flights.delays")
    catalog.create_table("flights.delays", schema=ARROW)
    sink.commit([written(sink, 1)])
    with pytest.raises(SinkError, match="was created again"):
        sink.roll([TASK], LATER)
    catalog.drop_table("flights.delays")
    with pytest.raises(SinkError, match=r"has no table flights\.delays"):
        sink.roll([TASK], LATER)


def test_a_catalog_that_cannot_be_read_is_an_error_of_the_store(sink, tmp_path):
    (tmp_path / "catalog.db").write_bytes(b"no database at all, but a file of some length" * 50)
    with pytest.raises(OSError, match="DatabaseError"):
        sink.check()


def test_secrets_of_the_catalog_are_not_shown(sink):
    secret = replace(sink, catalog_properties={**sink.catalog_properties, "password": "hush"})
    assert "hush" not in repr(secret)
    assert secret.name == "default.flights.delays"


KEYED = pa.schema([("k", pa.string()), ("d", pa.int64()), ("n", pa.int64())])
KEYS = (("EWR", 1), (None, 1), ("EWR", None), (None, None), ("JFK", 2))


def keyed_sink_in(directory: Path) -> IcebergSink:
    """A sink whose rows replace each other by two columns, with its new table."""
    fields = [("k", "string"), ("d", "long"), ("n", "long")]
    return replace(sink_in(directory, KEYED), schema_json=schema_json(fields), key=("k", "d"))


def changed(sink, number):
    """The part of micro-batch `number`: rows of three keys, of which one changes twice."""
    keys = [KEYS[(number + at) % len(KEYS)] for at in (0, 1, 2, 0)]
    rows = [{"k": k, "d": d, "n": 4 * number + at} for at, (k, d) in enumerate(keys)]
    return write_part(sink, number, pa.Table.from_pylist(rows, schema=KEYED))


def newest(batches):
    found: dict[tuple[str | None, int | None], int] = {}
    for number in batches:
        found |= {KEYS[(number + at) % len(KEYS)]: 4 * number + at for at in (1, 2)}
        found[KEYS[number % len(KEYS)]] = 4 * number + 3
    return found


def keyed_rows(sink):
    rows = table_of(sink).scan().to_arrow().to_pylist()
    found = {(row["k"], row["d"]): row["n"] for row in rows}
    assert len(found) == len(rows), "a key has two rows"
    return found


@pytest.mark.parametrize("most", [1000, 1])
def test_rows_replace_each_other_in_one_commit(tmp_path, monkeypatch, most):
    monkeypatch.setattr(iceberg, "MOST_VALUES", most)
    sink = keyed_sink_in(tmp_path)
    assert sink.takes_updates
    for number in range(3):
        sink.commit([changed(sink, number)])
        sink.roll([TASK], LATER)
        assert keyed_rows(sink) == newest(range(number + 1))
    for number in (3, 4):
        sink.commit([changed(sink, number)])
    sink.roll([TASK], LATER)
    assert keyed_rows(sink) == newest(range(5))
    assert table_of(sink).properties[f"headrace/g/flights-3/{INPUT}"] == "50"


def test_rows_of_other_writers_keep_their_keys(tmp_path):
    """Rows that the filter of a roll catches, though their keys are others, are written again as they were."""
    sink = keyed_sink_in(tmp_path)
    twice = pa.table({"k": ["EWR", "EWR", "X"], "d": [2, 2, 1], "n": [-1, -2, -3]}, schema=KEYED)
    table_of(sink).append(twice)
    sink.commit([changed(sink, 0)])
    sink.roll([TASK], LATER)
    rows = table_of(sink).scan().to_arrow().to_pylist()
    assert sorted(row["n"] for row in rows) == [-3, -2, -1, 1, 2, 3]


def test_columns_that_a_replaced_row_would_lose_are_refused(tmp_path):
    sink = keyed_sink_in(tmp_path)
    with table_of(sink).update_schema() as update:
        update.add_column("more", StringType())
    with pytest.raises(SinkError, match='lack the column "more"'):
        sink.check()


CHANGES = st.lists(st.tuples(st.sampled_from(KEYS), st.one_of(st.none(), st.integers(0, 99))), min_size=1, max_size=6)
LAST = ([(KEYS[0], 1)], True, True)
KEYED_BATCHES = st.lists(st.tuples(CHANGES, st.booleans(), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=100 if LONG else 5, deadline=None)
@given(events=EVENTS.filter(lambda events: "stranger" not in events), batches=KEYED_BATCHES)
def test_random_histories_of_replaced_rows(tmp_path_factory, events, batches):
    """Each committed batch counts once and in its order."""
    sink, log = keyed_sink_in(tmp_path_factory.mktemp("t")), []
    committed: list[KeyedChanges] = []
    with pytest.MonkeyPatch.context() as patch:
        commits = Commits(sink, events)
        patch.setattr(iceberg, "commit_rows", commits.append_rows)
        patch.setattr(SqlCatalog, "commit_table", lambda *change: commits.commit_table(*change))
        patch.setattr(iceberg, "PAUSE_S", 0.0)
        for number, (changes, counts, rolls) in enumerate([*batches, LAST]):
            part = write_part(sink, number, changes_table(changes, KEYED))
            if not counts:
                sink.discard([part])
                continue
            log.append(part)
            committed.append(changes)
            sink.commit([part])
            while rolls:
                try:
                    assert sink.roll([TASK], LATER) == []
                    break
                except Died:
                    owner_resolves(sink, log)
            if rolls:
                assert keyed_rows(sink) == apply_changes(committed)


def test_a_roll_that_deletes_rows_alone_is_a_snapshot(tmp_path):
    """Also where no row has any of its keys: without a snapshot a commit of an earlier owner would be accepted."""
    sink = keyed_sink_in(tmp_path)
    gone = [(key, None) for key in KEYS[:4]]
    batches: list[KeyedChanges] = [[(key, at) for at, key in enumerate(KEYS)], gone, gone, [(KEYS[0], 7)]]
    for number, changes in enumerate(batches):
        sink.commit([write_part(sink, number, changes_table(changes, KEYED))])
        before = len(table_of(sink).metadata.snapshots)
        sink.roll([TASK], LATER)
        assert keyed_rows(sink) == apply_changes(batches[: number + 1])
        assert len(table_of(sink).metadata.snapshots) > before
        assert table_of(sink).properties[f"headrace/g/flights-3/{INPUT}"] == str(10 * (number + 1))


def stored_sink_in(directory, s3, **given):
    """A sink whose table lies in S3, with its parts in a directory."""
    s3.fail([])
    directory.mkdir(exist_ok=True)
    properties = catalog_in_store(directory, s3)
    create_table(properties, ARROW)
    place, options = str(directory / "parts"), {**properties, **given}
    return IcebergSink(place, table=TABLE, catalog="default", catalog_properties=options, schema_json=SCHEMA)


def test_a_table_in_s3(tmp_path, s3):
    sink = stored_sink_in(tmp_path, s3)
    assert sink.lies_in_a_store()
    check_rows_that_moved_no_input(sink, partial(written, sink), partial(numbers, sink))
    assert sorted(sink.read_rows()["n"].to_pylist()) == list(range(9))
    assert all(name.startswith("s3://") for name in sink.files())


def run(sink, log):
    for number in range(2):
        log.append(written(sink, number))  # the offset commit
        sink.commit(log[-1:])
        sink.roll([TASK], LATER)


@pytest.mark.parametrize("kind", ["refused", "unknown"])
def test_a_store_that_fails_at_any_write_loses_and_repeats_nothing(tmp_path, s3, kind, monkeypatch):
    monkeypatch.setattr(iceberg, "TRIES", 2)
    sink = stored_sink_in(tmp_path / "whole", s3)
    s3.fail([])
    run(sink, [])
    count = len(s3.writes())
    assert count == 24, "two rolls: rows, manifest, manifest list and metadata, each in three requests"
    for at in range(0, count, 1 if LONG else 7):
        sink = stored_sink_in(tmp_path / f"{kind}-{at}", s3)
        s3.fail([(at, f"always {kind}" if kind == "refused" else kind)])
        log: list[SinkPart] = []
        with contextlib.suppress(OSError):
            run(sink, log)
        assert numbers(sink) <= expected_numbers(int(part.batch[2]) for part in log), f"write {at}"
        s3.fail([])
        owner_resolves(sink, log)
        sink.roll([TASK], LATER, everything=True)
        assert numbers(sink) == expected_numbers(int(part.batch[2]) for part in log), f"write {at}"


def test_a_store_that_refuses_the_credentials(tmp_path, s3):
    sink = stored_sink_in(tmp_path, s3)
    wrong = replace(sink, catalog_properties={**sink.catalog_properties, "s3.secret-access-key": "wr0ng/secret"})
    with pytest.raises(OSError, match="ACCESS_DENIED") as raised:
        wrong.check()
    assert "wr0ng/secret" not in str(raised.value)
    assert SECRET not in repr(sink)
