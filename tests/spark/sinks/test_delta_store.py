"""Delta tables in S3: a roll is in the log once, whatever dies, whatever the store refuses, and whoever commits it."""

import logging
import pickle
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.harness.s3_server import BUCKET, SECRET
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
    owner_resolves,
    schema_json,
    write_part,
)
from tests.longer import LONG

from headrace.errors import SinkError
from headrace.spark.sinks import delta
from headrace.spark.sinks.delta_store import DeltaStoreSink
from headrace.spark.sinks.object_store import StoreError
from headrace.spark.sinks.parquet_journal import Journal

SCHEMA = schema_json([("n", "long"), ("origin", "string")])
ARROW = pa.schema([("n", pa.int64()), ("origin", pa.string())])
ORIGINS = ("EWR", None, "a/b ü%[x]")


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    monkeypatch.setattr(delta, "PAUSE_S", 0.0)


@pytest.fixture
def sink(tmp_path, s3):
    return sink_in(tmp_path, s3)


def sink_in(directory, s3, **settings):
    s3.fail([])
    options = {**s3.delta_options(), "max_retries": "1"}
    return DeltaStoreSink(
        str(directory / "parts"),
        url=f"s3://{BUCKET}/{str(directory).strip('/')}",
        storage_options=options,
        schema_json=SCHEMA,
        **settings,
    )


def written(sink, number, *, moves=True):
    rows = pa.table({"n": [3 * number + at for at in range(3)], "origin": list(ORIGINS)}, schema=ARROW)
    return write_part(sink, number, rows, moves=moves)


def table_of(sink):
    return DeltaTable(sink.url, storage_options=dict(sink.storage_options))


def numbers(sink):
    table = sink._open()
    return Counter() if table is None else Counter(table.to_pyarrow_table()["n"].to_pylist())


@pytest.mark.parametrize("partitions", [(), ("origin",)])
def test_rows_and_positions_become_one_version(sink, partitions):
    sink = replace(sink, table_partitions=partitions)
    for number in range(3):
        sink.commit([written(sink, number)])
    assert sink.roll([TASK], 0) == [TASK]
    assert numbers(sink) == Counter()
    for _ in range(2):
        assert sink.roll([TASK], LATER) == []
    table = table_of(sink)
    assert table.version() == 1, "the table was created, and one roll added"
    rows = sink.read_rows()
    assert sorted(rows["n"].to_pylist()) == list(range(9))
    assert Counter(rows["origin"].to_pylist()) == Counter(dict.fromkeys(ORIGINS, 3))
    assert table.metadata().partition_columns == list(partitions)
    assert table.transaction_version(f"headrace/g/flights-3/{INPUT}") == 30
    assert table.transaction_version("headrace/g/flights-3") == 1
    assert sink.positions(TASK) == {INPUT: 30, "idle-3@id": 7}


def test_rows_that_moved_no_input_are_written_once(sink):
    check_rows_that_moved_no_input(sink, partial(written, sink), partial(numbers, sink))


def test_positions_follow_a_log_that_is_ahead_of_the_journal(sink):
    check_journal_behind_the_table(sink, partial(written, sink))


def test_a_journal_of_another_time_is_refused(sink):
    check_foreign_journal(sink, partial(written, sink), partial(numbers, sink))


class Commits:
    """Commits of rolls, each with the next event."""

    def __init__(self, s3, events):
        self._s3, self._events, self._append, self.strangers = s3, iter(events), DeltaStoreSink._append, 0

    def append(self, sink, table, files, versions):
        event = next(self._events, "well")
        self._s3.fail([])
        if event == "dies before":
            raise Died
        if event == "stranger":  # another program appends in between, and the handle is old
            self.strangers += 1
            from deltalake import write_deltalake

            rows = pa.table({"n": [-self.strangers], "origin": ["x"]}, schema=ARROW)
            write_deltalake(table_of(sink), rows, mode="append")
        if event == "zombie":  # an earlier owner, whose lock the file system has lost, commits the same roll
            self._append(sink, table_of(sink), files, versions)
        if event in ("refused", "unknown"):  # at the entry of the log; "full": at the first file of rows
            self._s3.fail([(0, f"always {event}" if event == "refused" else event)], "_delta_log")
        if event == "full":
            self._s3.fail([(0, "always refused")], ".parquet")
        try:
            self._append(sink, table, files, versions)
        finally:
            self._s3.fail([])
        if event == "dies behind":
            raise Died


EVENTS = st.lists(
    st.sampled_from(["well", "refused", "full", "unknown", "dies before", "dies behind", "stranger", "zombie"]),
    max_size=10,
)
BATCHES = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4)


@settings(max_examples=100 if LONG else 4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS, batches=BATCHES)
def test_random_histories_against_a_plain_log(tmp_path_factory, s3, events, batches):
    """Each committed batch is in the table once, and readers never see a part of one that is not committed."""
    sink = sink_in(tmp_path_factory.mktemp("history"), s3)
    with pytest.MonkeyPatch.context() as patch:
        commits = Commits(s3, events)
        patch.setattr(DeltaStoreSink, "_append", lambda sink, *roll: commits.append(sink, *roll))
        patch.setattr(delta, "PAUSE_S", 0.0)
        check_history(sink, partial(written, sink), partial(numbers, sink), batches, lambda: commits.strangers)


@pytest.mark.parametrize("kind", ["refused", "unknown"])
def test_a_store_that_fails_at_any_write_loses_and_repeats_nothing(tmp_path, s3, kind, monkeypatch):
    monkeypatch.setattr(delta, "TRIES", 2)
    partitions = ("origin",) if LONG else ()
    run(sink_in(tmp_path / "whole", s3, table_partitions=partitions), [])
    count = len(s3.writes())
    assert count > 4
    for at in range(0, count, 1 if LONG else 2):
        sink = sink_in(tmp_path / f"{kind}-{at}", s3, table_partitions=partitions)
        s3.fail([(at, f"always {kind}")])
        log: list[Any] = []
        try:
            run(sink, log)
        except OSError:
            assert numbers(sink) <= expected_numbers(int(part.batch[2]) for part in log), f"write {at}"
        s3.fail([])
        # The next owner.
        owner_resolves(sink, log)
        sink.roll([TASK], LATER, everything=True)
        assert numbers(sink) == expected_numbers(int(part.batch[2]) for part in log), f"write {at}"
        assert not [path for path in sink.directory_of(TASK).glob("*") if path.is_dir()], f"write {at}"


def run(sink, log):
    for number in range(3):
        part = written(sink, number)
        log.append(part)  # the offset commit
        sink.commit([part])
        if number != 0:
            sink.roll([TASK], LATER)


STEPS = (
    (DeltaStoreSink, "_append"),
    (DeltaStoreSink, "_create"),
    (Journal, "write"),
    (DeltaStoreSink, "_begin_roll"),
    (DeltaStoreSink, "_sync"),
)


@pytest.mark.parametrize("behind", [True, False] if LONG else [True])
def test_a_crash_at_any_step_loses_and_repeats_nothing(tmp_path, s3, monkeypatch, behind):
    with monkeypatch.context() as patch:
        steps = DyingSteps(patch, STEPS)
        run(sink_in(tmp_path / "whole", s3), [])
    assert steps.count > 10
    for at in range(1, steps.count + 1, 1 if LONG else 4):
        sink = sink_in(tmp_path / f"{at}", s3)
        log: list[Any] = []
        with monkeypatch.context() as patch:
            DyingSteps(patch, STEPS, at, behind=behind)
            with pytest.raises(Died):
                run(sink, log)
        expected = expected_numbers(int(part.batch[2]) for part in log)
        assert numbers(sink) <= expected, f"step {at}"
        for _ in range(2):
            owner_resolves(sink, log)
            sink.roll([TASK], LATER, everything=True)
        assert numbers(sink) == expected, f"step {at}"


def test_secrets_are_in_no_name_log_and_message(sink, s3, caplog):
    caplog.set_level(logging.DEBUG)
    assert SECRET not in repr(sink)
    assert s3.delta_options()["AWS_ACCESS_KEY_ID"] not in repr(sink)
    assert sink.name == sink.url
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    wrong = replace(sink, storage_options=s3.delta_options(secret="wr0ng/secret"))
    with pytest.raises(StoreError, match=r"refused the credentials \(SignatureDoesNotMatch") as raised:
        wrong.check()
    for text in (caplog.text, str(raised.value), repr(raised.value), raised.value.fix):
        assert SECRET not in text
        assert "wr0ng/secret" not in text
    assert raised.value.__cause__ is None
    for file in sink.directory_of(TASK).rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), "the positions"
    assert SECRET not in str(table_of(sink).history())
    assert pickle.loads(pickle.dumps(sink)) == sink, "it travels to the workers"


def test_a_bucket_that_is_missing_or_goes_read_only(sink, s3, monkeypatch):
    monkeypatch.setattr(delta, "TRIES", 2)
    with pytest.raises(StoreError, match="there is no such bucket"):
        replace(sink, url="s3://nowhere/table").check()
    sink.commit([written(sink, 0)])
    s3.fail([(0, "always refused")])
    with pytest.raises(StoreError, match=r"refused the request \(AccessDenied"):
        sink.roll([TASK], LATER)
    s3.fail([])
    assert sink.roll([TASK], LATER) == []
    assert numbers(sink) == expected_numbers([0])


def test_a_store_without_a_server_is_reported_in_time(sink):
    nowhere = {**sink.storage_options, "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    with pytest.raises(StoreError) as raised:
        replace(sink, storage_options=nowhere).check()
    assert "127.0.0.1:1" in str(raised.value)
    assert "endpoint" in raised.value.fix


def test_a_place_with_other_files_is_refused(sink):
    from deltalake import write_deltalake

    write_deltalake(f"{sink.url}/below", pa.table({"n": [1]}), storage_options=dict(sink.storage_options))
    sink.commit([written(sink, 0)])
    with pytest.raises(SinkError, match="has Parquet files and no Delta log"):
        sink.roll([TASK], LATER)


def test_columns_that_only_the_table_has_are_null(sink):
    wide = ARROW.insert(0, pa.field("more", pa.date32()))
    DeltaTable.create(sink.url, wide, storage_options=dict(sink.storage_options))
    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    rows = table_of(sink).to_pyarrow_table()
    assert rows["more"].to_pylist() == [None] * 3
    assert numbers(sink) == expected_numbers([0])


def test_columns_are_added_and_small_files_are_compacted(sink):
    options = dict(sink.storage_options)
    DeltaTable.create(sink.url, ARROW.remove(1), storage_options=options)
    sink = replace(sink, add_columns=True)
    for number in range(3):
        sink.commit([written(sink, number)])
        sink.roll([TASK], LATER)
        table_of(sink).optimize.compact()
    assert numbers(sink) == expected_numbers(range(3))
    assert Counter(sink.read_rows()["origin"].to_pylist()) == Counter(dict.fromkeys(ORIGINS, 3))
    assert len(sink.files()) == 1
    assert sink.positions(TASK)[INPUT] == 30


def test_a_table_with_other_columns_is_refused(sink):
    DeltaTable.create(sink.url, pa.schema([("n", pa.string())]), storage_options=dict(sink.storage_options))
    with pytest.raises(SinkError, match='"n" is string in the table'):
        sink.check()


def test_the_table_is_read_by_another_engine(sink):
    import pyarrow.dataset

    sink.commit([written(sink, 0)])
    sink.roll([TASK], LATER)
    dataset: pyarrow.dataset.Dataset = table_of(sink).to_pyarrow_dataset()
    assert dataset.count_rows() == 3
