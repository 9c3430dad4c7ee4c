"""Parquet parts on the disk: nothing is seen before it is committed, and every call may come twice."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from headrace.spark.sinks.interface import SinkPart, SinkTask
from headrace.spark.sinks.parquet import ParquetSink

TASK = SinkTask(group_id="g", subtopology_id="flights", partition=3)
ROWS = pa.table({"n": [1, 2, 3], "origin": ["EWR", None, "a/b"]})


@pytest.fixture
def sink(tmp_path):
    return ParquetSink(str(tmp_path / "table"))


def written(sink, batch="x.1.0", start=0, end=10, rows=ROWS):
    part = SinkPart(task=TASK, batch=batch, starts={"flights-3": start})
    writer = sink.writer(part, rows.schema)
    writer.write(rows.slice(0, 1))
    writer.write(rows.slice(1))
    writer.close()
    return replace(part, ends={"flights-3": end})


def seen(sink):
    files = sorted(Path(sink.path).rglob("*.parquet"))
    return [file for file in files if "_headrace" not in file.parts]


def test_a_part_is_seen_when_it_is_committed(sink):
    part = written(sink)
    assert seen(sink) == []
    assert [found.batch for found in sink.pending(TASK)] == ["x.1.0"]
    for _ in range(2):
        sink.commit([part])
        assert [file.name for file in seen(sink)] == ["g.flights-3-0-10.parquet"]
    assert parquet.read_table(seen(sink)[0]).equals(ROWS)
    assert sink.positions(TASK) == {"flights-3": 10}
    assert sink.pending(TASK) == []


def test_a_discarded_part_is_gone(sink):
    part = written(sink)
    sink.discard([part])
    sink.discard([part])
    assert sink.pending(TASK) == []
    assert sink.positions(TASK) == {}
    with pytest.raises(FileNotFoundError):
        sink.commit([part])


def test_a_part_that_was_not_closed_is_none(sink):
    part = SinkPart(task=TASK, batch="x.1.0", starts={"flights-3": 0})
    writer = sink.writer(part, ROWS.schema)
    writer.write(ROWS)
    assert sink.pending(TASK) == []
    with pytest.raises(FileNotFoundError):  # whoever opened the task since does not count on it
        writer.close()


def test_a_commit_that_died_half_way_is_finished_by_whoever_looks(sink, monkeypatch):
    part = written(sink)

    def dies(*_):
        raise OSError("died")

    with monkeypatch.context() as patch:
        patch.setattr(ParquetSink, "_publish", dies)
        with pytest.raises(OSError, match="died"):
            sink.commit([part])
    assert seen(sink) == []
    assert sink.pending(TASK) == []
    assert [file.name for file in seen(sink)] == ["g.flights-3-0-10.parquet"]


def test_a_late_commit_of_an_instance_that_lost_the_task(sink):
    """Another one has settled the part and gone on."""
    first = written(sink)
    sink.commit([first])
    sink.commit([written(sink, "y.0.0", 10, 20)])
    sink.commit([first])
    assert sink.positions(TASK) == {"flights-3": 20}
    assert len(seen(sink)) == 2


def test_hive_directories(sink):
    sink = replace(sink, partition_by=("origin",))
    sink.commit([written(sink)])
    assert [file.parent.name for file in seen(sink)] == [
        "origin=EWR",
        "origin=__HIVE_DEFAULT_PARTITION__",
        "origin=a%2Fb",
    ]
    assert sorted(n for file in seen(sink) for n in parquet.ParquetFile(file).read()["n"].to_pylist()) == [1, 2, 3]


def test_names_of_long_topics(sink):
    start = {f"{'t' * 240}-3": 0}
    part = SinkPart(task=TASK, batch="x.1.0", starts=start)
    writer = sink.writer(part, ROWS.schema)
    writer.write(ROWS)
    writer.close()
    sink.commit([replace(part, ends=dict.fromkeys(start, 5))])
    [file] = seen(sink)
    assert len(file.name) < 255
    stored = json.loads((sink.directory_of(TASK) / "positions.json").read_text())
    assert stored["positions"] == dict.fromkeys(start, 5)
