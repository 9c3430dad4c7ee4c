"""The record of the last batch that a query committed, and the transactions of its tasks. Pure.

A batch is written by many Spark tasks, and each has a Kafka transaction of its own: within one transaction a partition
takes sequence numbers in order, so tasks that run at the same time cannot share one. The driver therefore commits in
two steps. It records the decision (this batch, these transactions) in one transaction of the query's group, as the
metadata of an offset; then it ends the transactions. After the record the batch counts, and the next run of the query
ends what is left.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from headrace.errors import SinkError

__all__ = [
    "CommitRecord",
    "TaskTransaction",
    "group_of",
    "is_leftover",
    "latest_record",
    "lock_id",
    "name_tasks",
    "transactional_id_of",
    "transactional_id_prefix",
]

# Kafka's default of `offset.metadata.max.bytes`.
MAX_METADATA_BYTES: Final = 4096
_FORMAT: Final = 1
_TASK_ID: Final = re.compile(r"([0-9]+)-([0-9a-zA-Z]+)-([0-9]+)-([0-9]+)")
TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class TaskTransaction:
    """The transaction of one attempt of a Spark task.

    Attributes:
        task: Number of the Spark partition that was written.
        attempt: Spark's number of the attempt.
        producer_id: Of the identity that wrote.
        producer_epoch: Of the identity that wrote.
    """

    task: int
    attempt: int
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRecord:
    """The decision to commit a batch.

    Attributes:
        batch_id: Spark's id of the batch; -1 if the first batch was taken back.
        run_id: The run of the query (its start from the checkpoint) that decided.
        incarnation: Number of that run among those that decided; transactional ids contain it.
        tasks: Transactions that belong to the batch.
        is_rewrite: The batch was written by the option `rewriteBatchId`, which must not write it once more.
    """

    batch_id: int
    run_id: str
    incarnation: int
    tasks: tuple[TaskTransaction, ...] = ()
    is_rewrite: bool = False

    @property
    def offset(self) -> int:
        """The committed offset: as for a reader, the next batch. Kafka refuses negative offsets."""
        return self.batch_id + 1

    def to_metadata(self) -> str:
        """Return the metadata of the offset.

        Raises:
            SinkError: `sink-refused`: too many tasks have written.
        """
        rows = [(each.task, each.attempt, each.producer_id, each.producer_epoch) for each in self.tasks]
        # Column by column: most attempts are 0, ids and epochs are near each other, and so they compress well.
        columns = json.dumps(list(zip(*rows, strict=True)), separators=(",", ":")).encode()
        given: dict[str, Any] = {
            "v": _FORMAT,
            "batch": self.batch_id,
            "run": self.run_id,
            "incarnation": self.incarnation,
            "tasks": base64.b85encode(zlib.compress(columns, 9)).decode(),
        }
        if self.is_rewrite:
            given["rewrite"] = True
        text = json.dumps(given, separators=(",", ":"))
        if len(text) > MAX_METADATA_BYTES:
            raise SinkError(
                "sink-refused",
                f"Batch {self.batch_id} was written by {len(self.tasks)} tasks, more than one commit can name.",
                "Write fewer partitions: add .coalesce(200) before writeStream.",
                tasks=len(self.tasks),
            )
        return text

    @classmethod
    def parse(cls, metadata: str) -> CommitRecord:
        """Read the metadata of an offset.

        Raises:
            SinkError: `sink-refused`: it is no record of this version.
        """
        try:
            given = json.loads(metadata)
            if given["v"] != _FORMAT:
                raise ValueError(f"version {given['v']}")
            columns = json.loads(zlib.decompress(base64.b85decode(given["tasks"])))
            names = ("task", "attempt", "producer_id", "producer_epoch")
            return cls(
                batch_id=int(given["batch"]),
                run_id=str(given["run"]),
                incarnation=int(given["incarnation"]),
                tasks=tuple(
                    TaskTransaction(**dict(zip(names, map(int, row), strict=True)))
                    for row in zip(*columns, strict=True)
                ),
                is_rewrite=bool(given.get("rewrite", False)),
            )
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise SinkError(
                "sink-refused",
                f"The committed offset of the query's group has the metadata {metadata[:100]!r}, which is no record "
                f"of a batch ({error}).",
                'Leave the groups of format("headrace") to their queries; a newer version may have written it.',
            ) from error


def latest_record(
    offsets: Mapping[TopicPartition, tuple[int, str]],
) -> tuple[TopicPartition, CommitRecord] | None:
    """Return the newest record among a group's offsets and where it is; None if there is none.

    A query whose topics change leaves older records behind.
    """
    found = [(where, CommitRecord.parse(metadata)) for where, (offset, metadata) in offsets.items() if offset >= 0]
    return max(found, key=lambda each: (each[1].incarnation, each[1].batch_id), default=None)


def group_of(query_id: str) -> str:
    """Return the group whose offsets hold the record of a query."""
    return f"headrace-{query_id}"


def lock_id(query_id: str) -> str:
    """Return the transactional id whose owner may write the record: the newest one, as earlier ones are fenced."""
    return f"{transactional_id_prefix(query_id)}commit"


def transactional_id_prefix(query_id: str) -> str:
    """Return the beginning of all transactional ids of a query."""
    return f"headrace-{query_id}-"


def transactional_id_of(query_id: str, incarnation: int, run_id: str, each: TaskTransaction) -> str:
    """Return the transactional id of an attempt. Batches of a run use the same ids again."""
    prefix = transactional_id_prefix(query_id)
    return f"{prefix}{incarnation}-{_short(run_id)}-{each.task}-{each.attempt}"


def is_leftover(
    transactional_id: str, query_id: str, incarnation: int, *, only_run: str = "", except_run: str = ""
) -> bool:
    """Return whether an open transaction belongs to no batch that can still be committed.

    Args:
        transactional_id: Of the open transaction.
        query_id: The query.
        incarnation: Of a recorded decision whose transactions have ended. Runs with this number or a lower one can
            decide nothing any more, except the run that made the decision.
        only_run: Only transactions of this run, which has failed, are leftovers.
        except_run: The run that made the decision, if it is not the caller's: it may have gone on.
    """
    prefix = transactional_id_prefix(query_id)
    found = _TASK_ID.fullmatch(transactional_id.removeprefix(prefix)) if transactional_id.startswith(prefix) else None
    if found is None:
        return False
    number, run = int(found[1]), found[2]
    if only_run:
        return (number, run) == (incarnation, _short(only_run))
    # A larger number belongs to a successor, which replaced the caller's run without its notice.
    return number < incarnation or (number == incarnation and run != _short(except_run))


def _short(run_id: str) -> str:
    return run_id.replace("-", "")[:12]


def name_tasks(tasks: Iterable[TaskTransaction]) -> str:
    """Return the numbers of tasks for a message."""
    return ", ".join(str(each.task) for each in sorted(tasks))
