"""Delta tables on the disk: a roll is in the log once, whatever dies and whoever commits it."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tests.harness.sink_stories import (
    INPUT,
    LATER,
    TASK,
    Died,
    DyingSteps,
    check_foreign_journal,
    check_history,
    check_journal_behind_the_table,
    check_rows_that_moved_no_input,
    expected_numbers,
    schema_json,
    write_part,
)
from tests.harness.values import raising
from tests.longer import LONG, longer

from headrace.errors import SinkError
from headrace.spark.sinks import delta, delta_log
from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.parquet import ParquetSink
from headrace.spark.sinks.parquet_journal import Journal

SCHEMA = schema_json([("n", "long"), ("origin", "string")])
ARROW = pa.schema([("n", pa.int64()), ("origin", pa.string())])
ORIGINS = ("EWR", None, "a/b ü%[x]")


@pytest.fixture
def sink(tmp_path):
    return DeltaSink(str(tmp_path / "table"), schema_json=SCHEMA)


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(delta, "PAUSE_S", 0.0)


def written(sink, number, *, moves=True, schema=ARROW, task=TASK):
    """The part of micro-batch `number`: rows 3 * number and two more."""
    columns = {"n": [3 * number + at for at in range(3)], "origin": list(ORIGINS)}
    rows = pa.table({name: pa.array(columns.get(name, [number] * 3)) for name in schema.names}).cast(schema)
    return write_part(sink, number, rows, moves=moves, task=task)


def numbers(sink):
    if not (Path(sink.path) / "_delta_log").is_dir():
        return Counter()
    return Counter(DeltaTable(sink.path).to_pyarrow_table()["n"].to_pylist())


@pytest.mark.parametrize("partition_by", [(), ("origin",)])
def test_rows_and_positions_become_one_version(sink, partition_by):
    sink = replace(sink, partition_by=partition_by)
    for number in range(3):
        sink.commit([written(sink, number)])
    assert sink.roll([TASK], 0) == [TASK]
    assert numbers(sink) == Counter()
    for _ in range(2):
        assert sink.roll([TASK], LATER) == []
    table = DeltaTable(sink.path)
    assert table.version() == 1, "the table was created, and one roll added"
    rows = table.to_pyarrow_table()
    assert sorted(rows["n"].to_pylist()) == list(range(9))
    assert Counter(rows["origin"].to_pylist()) == Counter(dict.fromkeys(ORIGINS, 3))
    assert table.metadata().partition_columns == list(partition_by)
    application = "headrace/g/flights-3"
    assert table.transaction_version(f"{application}/{INPUT}") == 30
    assert table.transaction_version(application) == 1
    assert table.transaction_version(f"{application}/idle-3@id") is None, "it did not move"
    assert sink.positions(TASK) == {INPUT: 30, "idle-3@id": 7}
    assert sorted(Path(name).name for name in sink.files()) == sorted(
        path.name for path in Path(sink.path).rglob("g.*.parquet")
    )
    assert sum(json.loads(add["stats"])["numRecords"] for add in adds(sink)) == 9


def adds(sink):
    lines = [line for file in Path(sink.path, "_delta_log").glob("*.json") for line in file.read_text().splitlines()]
    return [entry["add"] for entry in map(json.loads, lines) if "add" in entry]


def test_rows_that_moved_no_input_are_written_once(sink):
    check_rows_that_moved_no_input(sink, partial(written, sink), partial(numbers, sink))


def test_positions_follow_a_log_that_is_ahead_of_the_journal(sink):
    check_journal_behind_the_table(sink, partial(written, sink))


def test_a_journal_of_another_time_is_refused(sink):
    check_foreign_journal(sink, partial(written, sink), partial(numbers, sink))


class Commits:
    """Commits of the log, each with the next event."""

    def __init__(self, sink, events):
        self.sink, self._events, self._add, self.strangers = sink, iter(events), delta_log.add_files, 0

    def add_files(self, table, files, versions):
        event = next(self._events, "well")
        if event == "refused":
            raise OSError("refused")
        if event == "dies before":
            raise Died
        if event == "stranger":  # another program appends in between, and the handle is old
            self.strangers += 1
            _append(self.sink, self.strangers)
        if event == "zombie":  # an earlier owner, whose lock the file system has lost, commits the same roll
            self._add(DeltaTable(self.sink.path), files, versions)
        self._add(table, files, versions)
        if event == "unknown":
            raise OSError("unknown")
        if event == "dies behind":
            raise Died


# What may happen to the next commits of the log. "refused" and "unknown": an error before and behind the commit.
EVENTS = st.lists(
    st.sampled_from(["well", "refused", "unknown", "dies before", "dies behind", "stranger", "zombie"]), max_size=14
)
BATCHES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=500 if LONG else 20, deadline=None)
@given(events=EVENTS, batches=BATCHES)
def test_random_histories_against_a_plain_log(tmp_path_factory, events, batches):
    """Each committed batch is in the table once, and readers never see a part of one that is not committed."""
    sink = DeltaSink(str(tmp_path_factory.mktemp("t") / "table"), schema_json=SCHEMA)
    with pytest.MonkeyPatch.context() as patch:
        commits = Commits(sink, events)
        patch.setattr(delta_log, "add_files", commits.add_files)
        patch.setattr(delta_log, "sync_log", lambda *_: None)  # a process that dies loses nothing of the page cache
        patch.setattr(delta, "PAUSE_S", 0.0)
        check_history(sink, partial(written, sink), partial(numbers, sink), batches, lambda: commits.strangers)


def _append(sink, number):
    name = f"stranger-{number}.parquet"
    parquet.write_table(pa.table({"n": [-number], "origin": ["x"]}), f"{sink.path}/{name}")
    size = Path(sink.path, name).stat().st_size
    DeltaTable(sink.path).create_write_transaction(
        [AddAction(name, size, {}, 0, True, "{}")],
        "append",
        ARROW,
        commit_properties=CommitProperties(app_transactions=[Transaction(f"s{number}", 1)]),
    )


STEPS = (
    (delta_log, "add_files"),
    (delta_log, "create_table"),
    (delta_log, "sync_log"),
    (Journal, "write"),
    (DeltaSink, "_new_files"),
    (DeltaSink, "_begin_roll"),
)


def run(sink, log):
    for number in range(4):
        part = written(sink, number, moves=number != 3)
        if number == 1:
            sink.discard([part])
            continue
        log.append(part)  # the offset commit
        sink.commit([part])
        if number != 0:
            sink.roll([TASK], LATER)


@pytest.mark.parametrize(
    ("partition_by", "behind"),
    [
        ((), True),
        (("origin",), False),
        pytest.param((), False, marks=longer),
        pytest.param(("origin",), True, marks=longer),
    ],
)
def test_a_crash_at_any_step_loses_and_repeats_nothing(tmp_path, monkeypatch, partition_by, behind):
    whole = DeltaSink(str(tmp_path / "whole"), partition_by=partition_by, schema_json=SCHEMA)
    with monkeypatch.context() as patch:
        steps = DyingSteps(patch, STEPS)
        run(whole, [])
    assert steps.count > 15
    for at in range(1, steps.count + 1):
        sink = replace(whole, path=str(tmp_path / f"{at}"))
        log: list[Any] = []
        with monkeypatch.context() as patch:
            DyingSteps(patch, STEPS, at, behind=behind)
            with pytest.raises(Died):
                run(sink, log)
        expected = expected_numbers(int(part.batch[2]) for part in log)
        assert numbers(sink) <= expected, f"step {at}"
        for _ in range(2):
            found = {part.batch for part in sink.pending(TASK)}
            sink.commit([part for part in log[-1:] if part.batch in found])
            sink.discard([part for part in sink.pending(TASK) if not log or part.batch != log[-1].batch])
            sink.roll([TASK], 0, everything=True)
        assert numbers(sink) == expected, f"step {at}"
        assert not [path for path in sink.directory_of(TASK).glob("*") if path.is_dir()], f"step {at}"


def test_many_tasks_append_beside_each_other(sink):
    tasks = [replace(TASK, partition=number) for number in range(5)]
    for number, task in enumerate(tasks):
        sink.commit([written(sink, number, task=task)])
    assert sink.roll(tasks, LATER) == []
    assert numbers(sink) == expected_numbers(range(5))
    assert sink.tasks_of("g") == tasks


def test_files_that_others_compact_are_not_added_again(sink):
    for number in range(2):
        sink.commit([written(sink, number)])
        sink.roll([TASK], LATER)
    table = DeltaTable(sink.path)
    table.optimize.compact()
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)
    sink.commit([written(sink, 2)])
    sink.roll([TASK], LATER)
    assert numbers(sink) == expected_numbers([0, 1, 2])
    assert len(sink.files()) == 2


def test_a_roll_that_others_compacted_before_the_journal_knew_it(sink, monkeypatch):
    """A second commit would add its file beside the compacted one, which has the same rows."""
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    sink.commit([written(sink, 1)])
    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "add_files", Commits(sink, ["dies behind"]).add_files)
        with pytest.raises(Died):
            sink.roll([TASK], LATER)
    DeltaTable(sink.path).optimize.compact()
    sink.roll([TASK], LATER)
    assert numbers(sink) == expected_numbers([0, 1])


def test_a_file_that_is_gone_is_not_added(sink, monkeypatch):
    sink.commit([written(sink, 0)])
    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "add_files", raising(Died()))
        with pytest.raises(Died):
            sink.roll([TASK], LATER)
    [file] = Path(sink.path).glob("*.parquet")
    file.unlink()
    with pytest.raises(FileNotFoundError, match=file.name):
        sink.roll([TASK], LATER)
    assert numbers(sink) == Counter()


def test_commits_that_never_succeed_end_the_roll(sink, monkeypatch):
    sink.commit([written(sink, 0)])
    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "add_files", raising(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            sink.roll([TASK], LATER)
    sink.roll([TASK], LATER)
    assert numbers(sink) == expected_numbers([0])


FIELD = deltalake.Field
BIGINT, TEXT = deltalake.schema.PrimitiveType("long"), deltalake.schema.PrimitiveType("string")
COLUMNS = [FIELD("n", BIGINT), FIELD("origin", TEXT)]


def constrained(path):
    DeltaTable.create(path, deltalake.Schema(COLUMNS)).alter.add_constraint({"small": "n < 100"})


REFUSED = {
    "needs": constrained,
    "needs deletionVectors": lambda path: DeltaTable.create(
        path, deltalake.Schema(COLUMNS), configuration={"delta.enableDeletionVectors": "true"}
    ),
    "sets delta.setTransactionRetentionDuration": lambda path: DeltaTable.create(
        path, deltalake.Schema(COLUMNS), configuration={"delta.setTransactionRetentionDuration": "interval 7 days"}
    ),
    '"n" is NOT NULL': lambda path: DeltaTable.create(
        path, deltalake.Schema([FIELD("n", BIGINT, nullable=False), COLUMNS[1]])
    ),
    '"origin" is of a limited length': lambda path: DeltaTable.create(
        path,
        deltalake.Schema([COLUMNS[0], FIELD("origin", TEXT, metadata={"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})]),
    ),
    '"n" is string in the table and long in the rows': lambda path: DeltaTable.create(
        path, deltalake.Schema([FIELD("n", TEXT), COLUMNS[1]])
    ),
    'no column "origin"': lambda path: DeltaTable.create(path, deltalake.Schema(COLUMNS[:1])),
    "partitioned by origin, the rows by no column": lambda path: DeltaTable.create(
        path, deltalake.Schema(COLUMNS), partition_by=["origin"]
    ),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_tables_that_cannot_take_the_rows_are_refused(sink, reason):
    REFUSED[reason](sink.path)
    sink.commit([written(sink, 0)])
    before = DeltaTable(sink.path).version()
    for call in (sink.check, lambda: sink.positions(TASK), lambda: sink.roll([TASK], LATER)):
        with pytest.raises(SinkError) as raised:
            call()
        assert raised.value.code == "sink-refused"
        assert reason in raised.value.message
        assert raised.value.fix
    assert DeltaTable(sink.path).version() == before


def test_a_schema_that_changes_between_two_commits(sink):
    """A column of another type is refused; one that the user adds is null, and the new program writes it."""
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    wide = replace(
        sink, schema_json=SCHEMA.replace("]", ', {"name": "w", "type": "long", "nullable": true, "metadata": {}}]')
    )
    sink.commit([written(sink, 1)])
    wide.commit([written(wide, 2, schema=ARROW.append(pa.field("w", pa.int64())))])
    with pytest.raises(SinkError, match='no column "w"'):
        wide.roll([TASK], LATER)
    DeltaTable(sink.path).alter.add_columns([FIELD("w", BIGINT)])
    assert wide.roll([TASK], LATER) == []
    rows = DeltaTable(sink.path).to_pyarrow_table().sort_by("n")
    assert rows["n"].to_pylist() == list(range(9))
    assert rows["w"].to_pylist() == [None] * 6 + [2] * 3


def wider(sink, **given):
    more = [("n", "long"), ("origin", "string"), ("w", "long")]
    return replace(sink, schema_json=schema_json(more), **given)


WIDE = ARROW.append(pa.field("w", pa.int64()))


def test_columns_that_the_table_lacks_are_added_where_it_is_allowed(sink, monkeypatch):
    """The check does not change the table, a roll does; rows of the old program go on beside the new one."""
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    with pytest.raises(SinkError, match='no column "w"') as raised:
        wider(sink).check()
    assert "add_columns=True" in raised.value.fix
    wide = wider(sink, add_columns=True)
    wide.check()
    assert wide.positions(TASK)[INPUT] == 10
    assert DeltaTable(sink.path).schema().to_arrow().names == ["n", "origin"]
    sink.commit([written(sink, 1)])
    wide.commit([written(wide, 2, schema=WIDE)])
    # Two instances add the column at the same time; the answer to one of them is lost.
    add = delta_log.add_missing_columns
    handles = iter([DeltaTable(sink.path)])

    def race(table, columns):
        add(next(handles, table), columns)
        return add(table, columns)

    with monkeypatch.context() as patch:
        patch.setattr(delta_log, "add_missing_columns", race)
        assert wide.roll([TASK], LATER) == []
    sink.commit([written(sink, 3)])
    assert sink.roll([TASK], LATER) == []
    rows = DeltaTable(sink.path).to_pyarrow_table().sort_by("n")
    assert rows["n"].to_pylist() == list(range(12))
    assert rows["w"].to_pylist() == [None] * 6 + [2] * 3 + [None] * 3
    assert [field.name for field in DeltaTable(sink.path).schema().fields] == ["n", "origin", "w"]


def test_columns_are_added_once_at_a_crash_on_either_side(sink, monkeypatch):
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    wide, add = wider(sink, add_columns=True), delta_log.add_missing_columns
    wide.commit([written(wide, 1, schema=WIDE)])
    for behind in (False, True):

        def die(table, columns, behind=behind):
            if behind:
                add(table, columns)
            raise Died

        with monkeypatch.context() as patch:
            patch.setattr(delta_log, "add_missing_columns", die)
            with pytest.raises(Died):
                wide.roll([TASK], LATER)
        assert numbers(sink) == expected_numbers([0])
    assert wide.roll([TASK], LATER) == []
    assert numbers(sink) == expected_numbers([0, 1])


@pytest.mark.parametrize(
    ("column", "why"), [(("N", "long"), '"N" and its column "n" are one name'), (("n", "string"), '"n" is long')]
)
def test_columns_that_differ_are_refused_though_new_ones_are_allowed(sink, column, why):
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    with pytest.raises(SinkError, match=why):
        replace(sink, schema_json=schema_json([column]), add_columns=True).check()


def test_a_table_that_was_removed_or_created_again_is_refused(sink):
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    sink.commit([written(sink, 1)])
    shutil.rmtree(Path(sink.path, "_delta_log"))
    with pytest.raises(SinkError, match="is gone since"):
        sink.roll([TASK], LATER)
    DeltaTable.create(sink.path, ARROW)
    for call in (lambda: sink.positions(TASK), lambda: sink.roll([TASK], LATER)):
        with pytest.raises(SinkError, match="was created again"):
            call()
    assert numbers(sink) == Counter()


def test_a_directory_of_plain_parquet_files_is_refused(sink):
    place = Path(sink.path, "origin=EWR")
    place.mkdir(parents=True)
    parquet.write_table(pa.table({"n": [1]}), place / "one.parquet")
    sink.commit([written(sink, 0)])
    with pytest.raises(SinkError, match="no Delta log"):
        sink.roll([TASK], LATER)
    assert not Path(sink.path, "_delta_log").exists()


def test_errors_of_delta_rs_have_no_terminal_colours(sink):
    Path(sink.path, "_delta_log").mkdir(parents=True)
    Path(sink.path, "_delta_log", f"{0:020}.json").write_text("no JSON")
    with pytest.raises(OSError, match="Error") as raised:
        sink.check()
    assert "\x1b" not in str(raised.value)


def test_parquet_files_are_not_put_beside_a_delta_log(sink):
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    files = ParquetSink(sink.path)
    other = replace(TASK, partition=4)
    files.commit([written(files, 1, task=other)])
    with pytest.raises(SinkError, match="its readers would not see") as caught:
        files.roll([other], LATER)
    assert "to_delta" in caught.value.fix
    assert numbers(sink) == expected_numbers([0])
