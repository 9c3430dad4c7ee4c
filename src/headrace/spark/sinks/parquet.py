"""Parquet files in a directory, each row in one of them; files are rolled by size and time.

    PATH/<group>.<topic>-<partition>-<from>-<to>.<digest>.parquet     what readers see (below Hive directories, if any)
    PATH/_headrace/<group>/<subtopology>-<partition>/<batch>/         a part: rows of one task and micro-batch
    PATH/_headrace/<group>/<subtopology>-<partition>/positions.json   what is committed (`parquet_journal`)

1. A worker writes a part under a name that begins with a dot, syncs it and renames it: it is there as a whole or not.
2. `commit` notes the part in the journal, in one step with the positions. Its rows count; readers do not see them yet.
3. `roll`, when the parts of the task are large or old enough: the journal names the file and its parts, the parts are
   merged into a hidden file, which is synced and renamed into the table, the journal notes that, the parts are removed.

The next owner repairs a crash between any two of these steps: a roll that the journal names is repeated
with the same parts under the same name, so that it replaces a file by an equal one. Spark, pandas, Arrow and DuckDB's
`*.parquet` pass over names that begin with an underscore: readers need no manifest, and others may merge files.

The directory lies on a local or shared POSIX file system with locks (`flock`) that every instance sees under one path.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.errors import SinkError
from headrace.spark.sinks.files import locked, remove, subdirectories, sync_directory, sync_file, write_text
from headrace.spark.sinks.interface import SinkPart, SinkTask
from headrace.spark.sinks.parquet_journal import CommittedPart, Journal

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ParquetSink", "PartWriter", "row_groups"]

WRITING = ".writing-"
ROLLING = ".rolling"
ROWS = "rows.parquet"
DELTA_LOG = "_delta_log"
STARTS = "starts.json"
NULL_DIRECTORY = "__HIVE_DEFAULT_PARTITION__"
ROW_GROUP_BYTES = 32 << 20
ROLL_SIZE_BYTES = 128 << 20
ROLL_INTERVAL_MS = 60_000


@dataclass(frozen=True, slots=True)
class ParquetSink:
    """Parquet files below `path`, in Hive directories by the columns of `partition_by`.

    A task's committed rows become a file when they take `roll_size_bytes` or the oldest of them are `roll_interval_ms`
    old (0: after every micro-batch), and when the application stops.
    """

    path: str
    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    roll_size_bytes: int = ROLL_SIZE_BYTES
    roll_interval_ms: int = ROLL_INTERVAL_MS

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
        found = []
        with locked(directory):
            counted = Journal.read(directory).counted
            for path in subdirectories(directory):
                if path.name.startswith("."):  # of an owner that died; one that lives still fails at its rename
                    remove(path)
                elif path.name not in counted:
                    starts = json.loads((path / STARTS).read_text())
                    found.append(SinkPart(task=task, batch=path.name, starts=starts))
        return found

    def positions(self, task: SinkTask) -> Mapping[str, int]:
        return Journal.read(self.directory_of(task)).positions

    def commit(self, parts: Sequence[SinkPart]) -> None:
        for part in parts:
            directory = self.directory_of(part.task)
            with locked(directory):
                journal = Journal.read(directory)
                # 1. Committed by an earlier call, of this owner or another.
                if part.batch in journal.counted:
                    continue
                path = directory / part.batch
                # 2. Positions and part go into the journal in one step; the rows themselves do not move.
                if path.is_dir():
                    size = sum(file.stat().st_size for file in path.rglob(ROWS))
                    journal.after_commit(part, size, int(time.time() * 1000)).write(directory)
                # 3. No directory: rolled into a file by another owner, or lost. The positions tell which.
                elif not journal.has(part):
                    raise FileNotFoundError(f"{path} is gone, and its rows are not in the table")

    def discard(self, parts: Sequence[SinkPart]) -> None:
        for part in parts:
            directory = self.directory_of(part.task)
            with locked(directory):
                if part.batch not in Journal.read(directory).counted:
                    for name in (part.batch, f"{WRITING}{part.batch}"):
                        remove(directory / name)

    def roll(self, tasks: Sequence[SinkTask], now_ms: int, *, everything: bool = False) -> list[SinkTask]:
        left = []
        for task in tasks:
            directory = self.directory_of(task)
            if not directory.is_dir():
                continue
            with locked(directory):
                # A roll that a crash interrupted is completed before another one begins: the journal holds one.
                journal = self._finish_roll(directory, Journal.read(directory))
                while parts := self._due(directory, journal, now_ms, everything=everything):
                    journal = self._begin_roll(directory, journal, parts)
                    journal.write(directory)
                    journal = self._finish_roll(directory, journal)
            if journal.waiting:
                left.append(task)
        return left

    def tasks_of(self, group_id: str) -> list[SinkTask]:
        """Return the tasks of a group that have ever written here."""
        names = [path.name.rpartition("-") for path in subdirectories(Path(self.path) / "_headrace" / group_id)]
        return [SinkTask(group_id=group_id, subtopology_id=name, partition=int(number)) for name, _, number in names]

    def directory_of(self, task: SinkTask) -> Path:
        """Return the directory with the task's parts and positions."""
        return Path(self.path) / "_headrace" / task.group_id / f"{task.subtopology_id}-{task.partition}"

    def _due(self, directory: Path, journal: Journal, now_ms: int, *, everything: bool) -> tuple[CommittedPart, ...]:
        """Return the parts of the next file: the oldest ones up to the size limit; none if no roll is due."""
        chosen: list[CommittedPart] = []
        size = 0
        for part in journal.waiting:
            if size >= self.roll_size_bytes or (chosen and not _are_alike(directory, chosen[-1], part)):
                return tuple(chosen)  # full, or the program's columns changed
            chosen.append(part)
            size += part.size_bytes
        if not chosen:
            return ()
        is_old = now_ms - chosen[0].committed_ms >= self.roll_interval_ms
        return tuple(chosen) if everything or is_old or size >= self.roll_size_bytes else ()

    def _begin_roll(self, directory: Path, journal: Journal, parts: Sequence[CommittedPart]) -> Journal:
        if (Path(self.path) / DELTA_LOG).is_dir():
            raise SinkError(
                "sink-refused",
                f"{self.path} is a Delta table: its readers would not see files that its log does not name",
                "Write to it by to_delta, or to another directory by to_parquet.",
                sink=self.path,
            )
        return journal.begin_roll(directory.parent.name, parts)

    def _finish_roll(self, directory: Path, journal: Journal) -> Journal:
        """Complete the roll that the journal names, from whichever step an earlier attempt reached."""
        roll = journal.roll
        if roll is None:
            return journal
        # 1. The file may be in the table or not. Publishing replaces it by an equal one.
        if not roll.published:
            self._publish(directory, journal)
            journal = journal.end_roll()
            journal.write(directory)
        # 2. Parts are removed only after the journal says that their rows are in the file.
        for batch in roll.batches:
            remove(directory / batch)
        # 3. The journal forgets the roll last. Until then its parts count as committed, so that `pending` does not list
        #    them again.
        journal = replace(journal, roll=None)
        journal.write(directory)
        return journal

    def _publish(self, directory: Path, journal: Journal) -> None:
        """Bring the rows of the journal's roll into the table."""
        self._place_files(directory, journal)

    def _place_files(self, directory: Path, journal: Journal) -> list[Path]:
        """Move every file of the roll to its final name, and return these names.

        Files of a single part are renamed; those renamed by an earlier attempt are in place already.
        """
        roll = journal.roll
        assert roll is not None
        source = directory / roll.batches[0]
        if len(roll.batches) > 1:
            source = directory / ROLLING
            remove(source)
            source.mkdir()
            _merge([directory / batch for batch in roll.batches], source, self.compression)
        placed = []
        # A directory without others below it holds one file, or held it before an earlier attempt.
        for leaf in sorted(path for path in (source, *source.rglob("*")) if path.is_dir() and not subdirectories(path)):
            place = Path(self.path) / leaf.relative_to(source)
            place.mkdir(parents=True, exist_ok=True)
            placed.append(place / roll.file)
            # A rename within one file system: readers see the whole file or none.
            if (leaf / ROWS).exists():
                (leaf / ROWS).replace(placed[-1])
                sync_directory(place)
        if len(roll.batches) > 1:
            remove(source)
        return placed


class PartWriter:
    """Row groups of a bounded size; one file, or one for each value of the partitioning columns."""

    def __init__(self, sink: ParquetSink, part: SinkPart, schema: pa.Schema) -> None:
        self._sink, self._part = sink, part
        self._schema = _without(schema, sink.partition_by)
        self._directory = sink.directory_of(part.task) / f"{WRITING}{part.batch}"
        self._files: dict[str, Any] = {}
        self._waiting: dict[str, list[pa.Table]] = {}
        self._directory.mkdir(parents=True)
        write_text(self._directory / STARTS, json.dumps(dict(part.starts)))

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
            sync_file(self._directory / place / ROWS)
            sync_directory(self._directory / place)
        # Bytes, then names, then the rename that makes the part complete, then the name of the part. In any other order
        # a power failure could leave a complete name with missing bytes.
        sync_directory(self._directory)
        self._directory.rename(self._directory.with_name(self._part.batch))
        sync_directory(self._directory.parent)

    def _flush(self, place: str) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        writer = self._files.get(place)
        if writer is None:
            directory = self._directory
            for name in place.split("/") if place else ():
                directory /= name
                directory.mkdir(exist_ok=True)  # never the part's own directory: its removal is a discard
            writer = parquet.ParquetWriter(directory / ROWS, self._schema, compression=self._sink.compression)
            self._files[place] = writer
        writer.write_table(pa.concat_tables(self._waiting.pop(place)).select(self._schema.names))


def _merge(parts: Sequence[Path], target: Path, compression: str) -> None:
    """The rows of all parts, in their order, one file for each place; durable."""
    from pyarrow import parquet

    places: dict[Path, list[Path]] = {}
    for part in parts:
        for file in sorted(part.rglob(ROWS)):
            places.setdefault(file.parent.relative_to(part), []).append(file)
    for place, files in places.items():
        (target / place).mkdir(parents=True, exist_ok=True)
        schema = parquet.read_schema(files[0])
        with parquet.ParquetWriter(target / place / ROWS, schema, compression=compression) as writer:
            for rows in row_groups(files):
                writer.write_table(rows)
        sync_file(target / place / ROWS)


def row_groups(files: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of small row groups together, up to a row group's size."""
    import pyarrow as pa
    from pyarrow import parquet

    waiting: list[pa.Table] = []
    for path in files:
        with parquet.ParquetFile(path) as file:
            for index in range(file.num_row_groups):
                waiting.append(file.read_row_group(index))
                if sum(table.nbytes for table in waiting) >= ROW_GROUP_BYTES:
                    yield pa.concat_tables(waiting)
                    waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _are_alike(directory: Path, one: CommittedPart, other: CommittedPart) -> bool:
    from pyarrow import parquet

    # Parts of two versions of a program have other columns, and one Parquet file has one schema.
    first, second = (next((directory / part.batch).rglob(ROWS)) for part in (one, other))
    return bool(parquet.read_schema(first).equals(parquet.read_schema(second)))


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
