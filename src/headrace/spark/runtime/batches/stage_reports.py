"""Small files by which stages report to the driver of their host what Spark does not carry: inner reports, and errors.

A stage followed by Spark SQL has no row of its own in the job's result, and an exception of a Python worker reaches the
driver as text. The files are named after subtopology, batch, attempt, stage and slot, written aside and renamed, so
that a reader sees complete files, and never those of another attempt.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import headrace.errors
from headrace.errors import HeadraceError, UserCodeError
from headrace.spark.runtime.batches.plan import StageReport
from headrace.spark.runtime.stores.store import BatchKey

__all__ = ["StageReports", "error_of", "facts_of"]

# Exceptions that values may cause. Any other, such as that of a database driver, may be about the sink as a whole.
_OF_VALUES = (ArithmeticError, MemoryError, NotImplementedError, TypeError, ValueError, pa.ArrowException)


class StageReports:
    """Report files of one attempt of one micro-batch."""

    def __init__(self, state_dir: str | Path, subtopology_id: str, batch: BatchKey) -> None:
        self._directory = Path(state_dir) / ".batches"
        self._prefix = f"{subtopology_id}.{batch.incarnation}.{batch.batch_id}.{batch.attempt}."

    def write_report(self, report: StageReport) -> None:
        self._write(f"{report.stage}.{report.slot}.report", report.to_json())

    def write_error(self, stage: str, slot: int, error: BaseException) -> None:
        """Write the parts that a user can read: code, message, fix, facts; of foreign errors the last line of the
        trace.
        """
        with contextlib.suppress(OSError):  # no room on the disk, say: the error itself matters more, and goes on
            self._write(f"{stage}.{slot}.error", json.dumps(facts_of(error), default=str))

    def reports(self) -> list[StageReport]:
        return [StageReport.from_json(text) for text in self._read(".report")]

    def errors(self) -> list[HeadraceError]:
        return [error_of(json.loads(text)) for text in self._read(".error")]

    def write_bad_records(self, stage: str, slot: int, found: Iterable[tuple[int, int, int, str]]) -> None:
        """Write the findings of a traced run: (task, topic by its number, offset, reason)."""
        self._write(f"{stage}.{slot}.bad", json.dumps(list(found)))

    def bad_records(self) -> list[tuple[int, int, int, str]]:
        return [tuple(found) for text in self._read(".bad") for found in json.loads(text)]

    def write_failed_rows(self, stage: str, slot: int, rows: pa.Table) -> None:
        """Write the input rows of a guarded run that Spark could not evaluate."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        self._write(f"{stage}.{slot}.rows", sink.getvalue())

    def failed_rows(self, stage: str) -> pa.Table | None:
        """Return the rows of all slots of a stage, None if there are none."""
        found = [
            pa.ipc.open_stream(path.read_bytes()).read_all()
            for path in self._paths(".rows")
            if path.name.startswith(f"{self._prefix}{stage}.")
        ]
        return pa.concat_tables(found).combine_chunks() if found else None

    def write_dead_letters(self, slot: int, names: Iterable[str]) -> None:
        """Write the names of this attempt's records that are in the dead-letter topic already."""
        self._write(f"{slot}.buried", json.dumps(sorted(names)))

    def dead_letters(self, slot: int) -> frozenset[str]:
        return frozenset(name for text in self._read(f".{slot}.buried") for name in json.loads(text))

    @contextlib.contextmanager
    def sequences(self, slot: int) -> Iterator[dict[tuple[str, int], int]]:
        """The sequence numbers that the slot's next records get, for one writer after the other."""
        self._directory.mkdir(parents=True, exist_ok=True)
        # `a+` creates the file if this is the first writer and truncates nothing if it is not. The lock is held over
        # the writer's sends: the next stage has to continue with the very next number, or the broker answers
        # OUT_OF_ORDER_SEQUENCE_NUMBER.
        with (self._directory / f"{self._prefix}{slot}.sequences").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            known = {(topic, partition): number for topic, partition, number in json.loads(file.read() or "[]")}
            yield known
            file.seek(0)
            file.truncate()
            file.write(json.dumps([[*where, number] for where, number in known.items()]))

    def remove(self) -> None:
        for path in self._paths(""):
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    def _write(self, name: str, content: str | pa.Buffer) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / f"{self._prefix}{name}"
        # The process id keeps two attempts on one host from writing into the same temporary file.
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
        aside.replace(path)

    def _read(self, ending: str) -> Iterator[str]:
        for path in self._paths(ending):
            yield path.read_text()

    def _paths(self, ending: str) -> list[Path]:
        if not self._directory.is_dir():
            return []
        return sorted(
            path
            for path in self._directory.iterdir()
            if path.name.startswith(self._prefix) and path.name.endswith(ending)
        )


def facts_of(error: BaseException) -> dict[str, Any]:
    """Return the parts of an error that a user can read."""
    if isinstance(error, HeadraceError):
        kind, code, message, fix, facts = type(error).__name__, error.code, error.message, error.fix, error.facts
        return {"kind": kind, "code": code, "message": message, "fix": fix, "facts": facts}
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    message = f"{type(error).__name__}: {error}"
    facts = {"where": where, "of_values": isinstance(error, _OF_VALUES)}
    return {"kind": "UserCodeError", "code": "stage-failed", "message": message, "fix": "", "facts": facts}


def error_of(facts: dict[str, Any]) -> HeadraceError:
    """Return the error of such parts."""
    kind = getattr(headrace.errors, facts["kind"], UserCodeError)
    return kind(facts["code"], facts["message"], facts["fix"], **facts["facts"])
