"""Parquet files on the disk: rolled by size and time, seen as a whole; every call may come twice, or die half way."""

import json
import os
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.harness.sink_stories import Died

from headrace.spark.sinks import parquet_journal
from headrace.spark.sinks.interface import SinkPart, SinkTask
from headrace.spark.sinks.parquet import ParquetSink

TASK = SinkTask(group_id="g", subtopology_id="flights", partition=3)
ROWS = pa.table({"n": [1, 2, 3], "origin": ["EWR", None, "a/b"]})


@pytest.fixture
def sink(tmp_path):
    return ParquetSink(str(tmp_path / "table"))


INPUT = "flights-3@id"
LATER = 1 << 60  # every interval is over


def written(sink, batch="x.1.0", start=0, end=10, rows=ROWS):
    part = SinkPart(task=TASK, batch=batch, starts={INPUT: start})
    writer = sink.writer(part, rows.schema)
    writer.write(rows.slice(0, 1))
    writer.write(rows.slice(1))
    writer.close()
    return replace(part, ends={INPUT: end})


def seen(sink):
    files = sorted(Path(sink.path).rglob("*.parquet"))
    return [file for file in files if "_headrace" not in file.parts]


def numbers(sink):
    return Counter(n for file in seen(sink) for n in parquet.ParquetFile(file).read()["n"].to_pylist())


def test_rows_are_seen_when_they_are_committed_and_it_is_time(sink):
    part = written(sink)
    assert [found.batch for found in sink.pending(TASK)] == ["x.1.0"]
    sink.roll([TASK], LATER)
    assert seen(sink) == []
    for _ in range(2):
        sink.commit([part])
    assert sink.pending(TASK) == []
    assert sink.positions(TASK) == {INPUT: 10}
    assert sink.roll([TASK], 0) == [TASK]
    assert seen(sink) == []
    for _ in range(2):
        assert sink.roll([TASK], LATER) == []
        assert [file.name.rsplit(".", 2)[0] for file in seen(sink)] == ["g.flights-3-0-10"]
    assert parquet.read_table(seen(sink)[0]).equals(ROWS)
    assert sink.pending(TASK) == []


def test_many_micro_batches_make_one_file(sink):
    for number in range(20):
        sink.commit([written(sink, f"x.{number}.0", 10 * number, 10 * number + 10)])
    sink.roll([TASK], LATER)
    assert [file.name.rsplit(".", 2)[0] for file in seen(sink)] == ["g.flights-3-0-200"]
    assert numbers(sink) == Counter({1: 20, 2: 20, 3: 20})
    assert parquet.ParquetFile(seen(sink)[0]).num_row_groups == 1


def test_size_makes_a_file_before_its_time(sink):
    part = written(sink)
    size = sum(file.stat().st_size for file in (sink.directory_of(TASK) / part.batch).rglob("rows.parquet"))
    sink = replace(sink, roll_size_bytes=2 * size)
    sink.commit([part])
    sink.roll([TASK], 0)
    assert seen(sink) == []
    for number in range(2, 6):
        sink.commit([written(sink, f"x.{number}.0", 10 * number, 10 * number + 10)])
    assert sink.roll([TASK], 0) == [TASK]
    assert len(seen(sink)) == 2
    assert sink.roll([TASK], 0, everything=True) == []
    assert (len(seen(sink)), numbers(sink).total()) == (3, 15)


def test_a_program_with_other_columns_begins_another_file(sink):
    sink.commit([written(sink)])
    sink.commit([written(sink, "y.0.0", 10, 20, pa.table({"n": [4, 5]}))])
    sink.roll([TASK], LATER)
    assert [parquet.read_schema(file).names for file in seen(sink)] == [["n", "origin"], ["n"]]


def test_a_discarded_part_is_gone(sink):
    part = written(sink)
    sink.discard([part])
    sink.discard([part])
    assert sink.pending(TASK) == []
    assert sink.positions(TASK) == {}
    with pytest.raises(FileNotFoundError):
        sink.commit([part])


def test_a_committed_part_cannot_be_discarded(sink):
    part = written(sink)
    sink.commit([part])
    sink.discard([part])
    sink.roll([TASK], LATER)
    assert numbers(sink).total() == 3


def test_a_part_that_was_not_closed_is_none(sink):
    part = SinkPart(task=TASK, batch="x.1.0", starts={INPUT: 0})
    writer = sink.writer(part, ROWS.schema)
    writer.write(ROWS)
    assert sink.pending(TASK) == []
    with pytest.raises(FileNotFoundError):  # whoever opened the task since does not count on it
        writer.close()


def test_a_late_commit_of_an_instance_that_lost_the_task(sink):
    """Another one has resolved the part and gone on."""
    first = written(sink)
    sink.commit([first])
    sink.roll([TASK], LATER)
    sink.commit([written(sink, "y.0.0", 10, 20)])
    sink.commit([first])
    sink.roll([TASK], LATER)
    assert sink.positions(TASK) == {INPUT: 20}
    assert len(seen(sink)) == 2


def test_positions_never_go_back_when_two_owners_overlap(sink, monkeypatch):
    """The first has read the journal and is about to replace it when the second, who owns the task now, commits."""
    first, second = written(sink), written(sink, "y.0.0", 10, 20)
    write = parquet_journal.write_text
    others: list[threading.Thread] = []

    def slow_write(path, text):
        if not others:
            others.append(threading.Thread(target=sink.commit, args=([second],)))
            others[0].start()
            others[0].join(0.5)  # it waits for the lock, or it is done
        write(path, text)

    monkeypatch.setattr(parquet_journal, "write_text", slow_write)
    sink.commit([first])
    others[0].join()
    assert sink.positions(TASK) == {INPUT: 20}
    sink.roll([TASK], LATER)
    assert numbers(sink).total() == 6


def test_a_topic_that_was_created_again_is_another_input(sink):
    """Same name, same offsets: neither its positions nor its files are those of the first."""
    sink.commit([written(sink)])
    sink.roll([TASK], LATER)
    part = SinkPart(task=TASK, batch="y.1.0", starts={"flights-3@other": 0})
    writer = sink.writer(part, ROWS.schema)
    writer.write(ROWS)
    writer.close()
    assert sink.positions(TASK).get("flights-3@other", 0) == 0
    sink.commit([replace(part, ends={"flights-3@other": 10})])
    sink.roll([TASK], LATER)
    assert (len(seen(sink)), numbers(sink).total()) == (2, 6)


class Steps:
    """Counts what changes a directory, and dies at one of it: before it is done, or behind it."""

    NAMES = ("replace", "rename", "unlink", "rmdir", "mkdir")

    def __init__(self, patch, at=None, *, behind=False):
        self.count = 0
        patch.setattr(os, "fsync", lambda _: None)  # a process that dies loses nothing of the page cache
        for name in self.NAMES:
            patch.setattr(os, name, self._wrapped(getattr(os, name), at, behind))

    def _wrapped(self, step, at, behind):
        def take(*args, **kwargs):
            self.count += 1
            if self.count == at and not behind:
                raise Died
            try:
                return step(*args, **kwargs)
            finally:
                if self.count == at:
                    raise Died

        return take


def run(sink, log):
    """Four micro-batches, the third of which comes to nothing. `log`: what the group's offsets name as committed."""
    for number in range(4):
        rows = pa.table({"n": [3 * number, 3 * number + 1, 3 * number + 2], "origin": ["EWR", None, "JFK"]})
        part = written(sink, f"x.{number}.0", 10 * number, 10 * number + 10, rows)
        if number == 2:
            sink.discard([part])
            continue
        log.append(part)  # the offset commit
        sink.commit([part])
        if number != 0:
            sink.roll([TASK], LATER)


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("partition_by", [(), ("origin",)])
def test_a_crash_at_any_step_loses_and_repeats_nothing(tmp_path, monkeypatch, partition_by, behind):
    with monkeypatch.context() as patch:
        steps = Steps(patch)
        run(ParquetSink(str(tmp_path / "whole"), partition_by=partition_by), [])
    assert steps.count > 40
    for at in range(1, steps.count + 1):
        sink = ParquetSink(str(tmp_path / f"{at}"), partition_by=partition_by)
        log: list[Any] = []
        with monkeypatch.context() as patch:
            Steps(patch, at, behind=behind)
            with pytest.raises(Died):
                run(sink, log)
        wanted = Counter(n for part in log for n in range(int(part.batch[2]) * 3, int(part.batch[2]) * 3 + 3))
        assert numbers(sink) <= wanted, f"step {at}: readers saw rows twice, or rows that are not committed"
        _recover(sink, log)
        assert numbers(sink) == wanted, f"step {at}"
        assert not [path for path in sink.directory_of(TASK).glob("*") if path.is_dir()], f"step {at}"
        assert sink.positions(TASK) == ({INPUT: log[-1].ends[INPUT]} if log else {})


def _recover(sink, log):
    """What the next owner does when it opens the task, and later; it may itself die behind its first look."""
    for _ in range(2):
        pending = sink.pending(TASK)
        last = log[-1].batch if log else None
        sink.commit([part for part in log if part.batch == last and part.batch in {found.batch for found in pending}])
        sink.discard([found for found in pending if found.batch != last])
        sink.roll([TASK], 0, everything=True)


def test_hive_directories(sink):
    sink = replace(sink, partition_by=("origin",))
    sink.commit([written(sink)])
    sink.roll([TASK], LATER)
    assert [file.parent.name for file in seen(sink)] == [
        "origin=EWR",
        "origin=__HIVE_DEFAULT_PARTITION__",
        "origin=a%2Fb",
    ]
    assert sorted(numbers(sink)) == [1, 2, 3]


def test_names_of_long_topics(sink):
    start = {f"{'t' * 240}-3@id": 0}
    part = SinkPart(task=TASK, batch="x.1.0", starts=start)
    writer = sink.writer(part, ROWS.schema)
    writer.write(ROWS)
    writer.close()
    sink.commit([replace(part, ends=dict.fromkeys(start, 5))])
    sink.roll([TASK], LATER)
    [file] = seen(sink)
    assert len(file.name) < 255
    stored = json.loads((sink.directory_of(TASK) / "positions.json").read_text())
    assert stored["positions"] == dict.fromkeys(start, 5)
