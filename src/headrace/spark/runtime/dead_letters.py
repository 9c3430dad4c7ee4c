"""Dead letters: input records that a stage writes, unchanged, to another topic, with their origin and the reason.

Exactly once they lie in the slot's transaction, like everything that the stage writes.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace.errors import RecordError
from headrace.spark.runtime.batches.sink_stage import producer_for
from headrace.spark.runtime.batches.stages import StageContext

__all__ = ["remember_dead_letters", "send_dead_letters"]


def send_dead_letters(
    context: StageContext,
    topic: str,
    where: tuple[str, int],
    records: pa.Table,
    reasons: Sequence[str],
    more: Sequence[Sequence[tuple[str, bytes]]] | None = None,
) -> list[str]:
    """Send records, and return their names for `remember_dead_letters`. The caller flushes in between.

    Args:
        context: Of the stage.
        topic: To write to.
        where: Topic and partition that the records come from.
        records: With the columns offset, key and value.
        reasons: Of each record.
        more: Further headers of each record.
    """
    offsets = records.column("offset").to_pylist()
    # With the reason, which names the operator: others of the slot may write the same record, at the same time.
    names = [
        f"{topic} {where[0]}-{where[1]}@{offset} {reason}" for offset, reason in zip(offsets, reasons, strict=True)
    ]
    # A `foreachBatch` function may run its frame several times, and in other processes: hence a file with the names of
    # this attempt's dead letters.
    known = context.stage_reports.dead_letters(context.slot.slot)
    fresh = [index for index, name in enumerate(names) if name not in known]
    if not fresh:
        return []
    own = more if more is not None else [()] * len(reasons)
    headers = [_headers(where, offsets[index], reasons[index], own[index]) for index in fresh]
    records = records.take(pa.array(fresh))
    producer_for(context).send(
        topic,
        None,
        records.column("key").combine_chunks(),
        records.column("value").combine_chunks(),
        timestamps_ms=context.topics.now_ms(),
        headers=pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    )
    return [names[index] for index in fresh]


def remember_dead_letters(context: StageContext, names: Sequence[str]) -> None:
    """Note names of records that are written: another run of this attempt does not write them again."""
    known = context.stage_reports.dead_letters(context.slot.slot)
    context.stage_reports.write_dead_letters(context.slot.slot, known.union(names))


def _headers(
    where: tuple[str, int], offset: int, reason: str, own: Sequence[tuple[str, bytes]]
) -> list[dict[str, str | bytes]]:
    """Return Headrace's own headers, and those of Kafka Streams (KIP-1034) for tools that read them."""
    topic, partition = where[0].encode(), str(where[1]).encode()
    pairs = [
        ("headrace.topic", topic),
        ("headrace.partition", partition),
        ("headrace.offset", str(offset).encode()),
        ("headrace.reason", reason.encode()),
        *own,
        ("__streams.errors.exception", f"{RecordError.__module__}.{RecordError.__qualname__}".encode()),
        ("__streams.errors.message", reason.encode()),
        ("__streams.errors.topic", topic),
        ("__streams.errors.partition", partition),
        ("__streams.errors.offset", str(offset).encode()),
    ]
    return [{"key": name, "value": value} for name, value in pairs]
