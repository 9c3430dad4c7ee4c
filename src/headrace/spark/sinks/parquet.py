"""Parquet files in a directory: one file for each task and micro-batch that had rows, and each row in one of them.

    PATH/<group>.<topic>-<partition>-<from>-<to>.parquet          what readers see (below Hive directories if asked for)
    PATH/_headrace/<group>/<subtopology>-<partition>/<batch>/     a part that was written and does not count yet
    PATH/_headrace/<group>/<subtopology>-<partition>/positions.json

A part is written beside its place, synced, and renamed: it is there as a whole or not at all. Committing it is a rename
again, into the table; Spark, pandas, Arrow and DuckDB's `*.parquet` pass over names that begin with an underscore. So
readers need no manifest, and others may merge small files: positions are kept beside them, not in their names alone.

The directory lies on a local or shared POSIX file system that every instance sees under the same path.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.spark.sinks.interface import SinkPart, SinkTask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSink", "PartWriter"]

POSITIONS = "positions.json"
WRITING = ".writing-"
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
ROW_GROUP_BYTES = 32 << 20
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Rows leave as Parquet files below `path`, in Hive directories by the columns of `partition_by`."""

    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"

    @property
    def name(self) -> str:
        return self.path

    @property
    def takes_updates(self) -> bool:
        return False

    def writer(self, part: SinkPart, schema: pa.Schema) -> PartWriter:
        return PartWriter(self, part, schema)

    def pending(self, task: SinkTask) -> list[SinkPart]:
        directory = self.directory_of(task)
        known = _positions(directory)
        found = []
        for path in _subdirectories(directory):
            if path.name.startswith("."):  # of somebody who died; whoever lives still fails at its rename
                _remove(path)
                continue
            part = SinkPart(task=task, batch=path.name, starts=json.loads((path / "starts.json").read_text()))
            if path.name == known.batch:  # its commit was begun, and its positions are taken already
                self._publish(path, known.file)
            else:
                found.append(part)
        return found

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        return _positions(self.directory_of(task)).positions

    def commit(self, parts: Sequence[SinkPart]) -> None:
        for part in parts:
            directory = self.directory_of(part.task)
            known, path, name = _positions(directory), directory / part.batch, _file_name(part)
            if path.is_dir():
                if known.batch != part.batch:
                    _write(directory / POSITIONS, known.after(part, name).to_json())
                self._publish(path, name)
            elif any(known.positions.get(name, -1) < at for name, at in part.ends.items() if at > part.starts[name]):
                raise FileNotFoundError(f"{path} is gone, and its rows are not in the table")

    def discard(self, parts: Sequence[SinkPart]) -> None:
        for part in parts:
            for name in (part.batch, f"{WRITING}{part.batch}"):
                _remove(self.directory_of(part.task) / name)

    def directory_of(self, task: SinkTask) -> Path:
        """Where the task's parts and positions are."""
        return Path(self.path) / "_headrace" / task.group_id / f"{task.subtopology_id}-{task.partition}"

    def _publish(self, part: Path, name: str) -> None:
        """Every file of the part into the table; what an earlier attempt moved is there already."""
        table = Path(self.path)
        for file in sorted(part.rglob("*.parquet")):
            place = table / file.parent.relative_to(part)
            place.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileNotFoundError):  # another instance was faster
                file.replace(place / name)
            _sync_directory(place)
        _remove(part)


class PartWriter:
    """Row groups of a bounded size; one file, or one for each value of the partitioning columns."""

    def __init__(self, sink: ParquetSink, part: SinkPart, schema: pa.Schema) -> None:
        self._sink, self._part = sink, part
        self._schema = _without(schema, sink.partition_by)
        self._directory = sink.directory_of(part.task) / f"{WRITING}{part.batch}"
        self._files: dict[str, Any] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._directory.mkdir(parents=True)
        # the name of the file comes from here as well
        _write(self._directory / "starts.json", json.dumps(dict(part.starts)))

    def write(self, rows: pa.Table) -> None:
        for place, piece in _by_place(rows, self._sink.partition_by):
            waiting = self._waiting.setdefault(place, [])
            waiting.append(piece)
            if sum(table.nbytes for table in waiting) >= ROW_GROUP_BYTES:
                self._flush(place)

    def close(self) -> None:
        for place in list(self._waiting):
            self._flush(place)
        for writer in self._files.values():
            writer.close()
        for place in self._files:
            _sync_file(self._directory / place / "rows.parquet")
            _sync_directory(self._directory / place)
        _sync_directory(self._directory)
        self._directory.rename(self._directory.with_name(self._part.batch))
        _sync_directory(self._directory.parent)

    def _flush(self, place: str) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        writer = self._files.get(place)
        if writer is None:
            directory = self._directory
            for name in place.split("/") if place else ():
                directory /= name
                directory.mkdir(exist_ok=True)  # never the part's own: who took that away means it
            writer = parquet.ParquetWriter(directory / "rows.parquet", self._schema, compression=self._sink.compression)
            self._files[place] = writer
        writer.write_table(pa.concat_tables(self._waiting.pop(place)).select(self._schema.names))


def _by_place(rows: pa.Table, partition_by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """(relative directory, its rows), in the order in which values first come."""
    if not partition_by:
        yield "", rows
        return
    import pyarrow as pa

    numbered = rows.select(partition_by).append_column("__row", pa.array(range(rows.num_rows)))
    for group in numbered.group_by(list(partition_by)).aggregate([("__row", "list")]).to_pylist():
        parts = [f"{name}={_directory_name(group[name])}" for name in partition_by]
        yield "/".join(parts), rows.take(pa.array(group["__row_list"]))


def _directory_name(value: object) -> str:
    """As Spark and Hive write it."""
    if value is None or value == "":
        return NULL_DIRECTORY
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return quote(text, safe=" !$&'()+,;<>@[]|~")


def _without(schema: pa.Schema, names: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([field for field in schema if field.name not in names])


def _file_name(part: SinkPart) -> str:
    """By the first input that the part moved; ranges of one input never overlap, so names differ."""
    moved = sorted(name for name, at in part.ends.items() if at > part.starts[name])
    name = f"{part.task.group_id}.{moved[0]}-{part.starts[moved[0]]}-{part.ends[moved[0]]}"
    if len(name) > LONGEST_NAME:
        from xxhash import xxh3_64_hexdigest

        name = f"{name[:LONGEST_NAME]}-{xxh3_64_hexdigest(name.encode())}"
    return f"{name}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Positions:
    """How far the table has a task's rows, and the batch (with its files' name) whose commit said so."""

    positions: dict[str, int]
    batch: str = ""
    file: str = ""

    def after(self, part: SinkPart, file: str) -> _Positions:
        reached = self.positions | {name: max(at, self.positions.get(name, at)) for name, at in part.ends.items()}
        return _Positions(positions=reached, batch=part.batch, file=file)

    def to_json(self) -> str:
        return json.dumps({"positions": self.positions, "batch": self.batch, "file": self.file})


def _positions(directory: Path) -> _Positions:
    try:
        return _Positions(**json.loads((directory / POSITIONS).read_text()))
    except FileNotFoundError:
        return _Positions(positions={})


def _subdirectories(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []


def _remove(path: Path) -> None:
    """As a whole: nobody may take the rest for a part."""
    gone = path.with_name(f".gone-{path.name.lstrip('.')}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _write(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text)
    _sync_file(aside)
    aside.replace(path)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
