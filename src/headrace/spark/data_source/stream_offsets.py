"""Offsets of a streaming query: their form in Spark's checkpoint, and the plan of a micro-batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.client.broker_errors import recreated_topic
from headrace.errors import ConfigError
from headrace.spark.data_source.offset_ranges import LogBounds, OffsetRange, checked_start, data_loss

__all__ = ["INITIAL", "StreamOffset", "begin_positions", "limit_ends", "ranges_between"]

TopicPartition = tuple[str, int]

# Spark keeps the end of a batch before it runs, but never the initial offset: a query that ended in its first batch
# asks for the initial offset again. So the initial offset contains no position, and the end of a batch holds where
# partitions begin that the batch reads for the first time (`starts`). A batch that runs again reads the same records.
INITIAL: Final[Mapping[str, Any]] = {"initial": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """The end of a micro-batch.

    Attributes:
        offsets: The next record to read, by partition.
        topic_ids: Ids of the topics, empty where the broker has none.
        starts: Where this batch begins in partitions whose records do not follow those of the batch before.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> StreamOffset | None:
        """Read the offset of a checkpoint, None for the initial one.

        Raises:
            ConfigError: `bad-value`: the checkpoint is of another source.
        """
        if dict(given) == INITIAL:
            return None
        try:
            return cls(
                offsets=_flat(given["offsets"]),
                topic_ids={str(topic): str(id_) for topic, id_ in given["topic_ids"].items()},
                starts=_flat(given.get("starts", {})),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                "bad-value",
                f'The offset {str(dict(given))[:200]} of the checkpoint is none of format("headrace").',
                "Set another checkpointLocation; startingOffsets can name the offsets where the other query stopped.",
                key="checkpointLocation",
            ) from error

    def as_json(self) -> dict[str, Any]:
        """Return the form for the checkpoint, with sorted keys: Spark compares offsets as text."""
        found = {"offsets": _nested(self.offsets), "topic_ids": dict(sorted(self.topic_ids.items()))}
        return found | ({"starts": _nested(self.starts)} if self.starts else {})


def begin_positions(
    previous: StreamOffset,
    topic_ids: Mapping[TopicPartition, str],
    bounds: Mapping[TopicPartition, LogBounds],
    *,
    fail_on_data_loss: bool,
) -> dict[TopicPartition, int]:
    """Return where the next batch begins in each partition, with the rules of `KafkaMicroBatchStream`.

    Args:
        previous: The end of the batch before.
        topic_ids: The partitions that exist now.
        bounds: Of these partitions.
        fail_on_data_loss: Refuse to go on without records; otherwise continue with those that are left.

    Raises:
        BrokerError: `offset-out-of-range`, `topic-recreated`; only with `fail_on_data_loss`.
    """
    if fail_on_data_loss:
        for key in sorted(previous.offsets.keys() - topic_ids.keys()):
            raise data_loss(key, previous.offsets[key], "the partition does not exist any more, or is not subscribed")
    begins = {}
    for key, id_ in topic_ids.items():
        topic, partition = key
        was, offset = previous.topic_ids.get(topic, ""), previous.offsets.get(key)
        if was and id_ and was != id_:
            if fail_on_data_loss:
                at = f" from offset {offset}" if offset is not None else ""
                raise recreated_topic(
                    f"Reading {topic}-{partition}{at}",
                    topic,
                    was,
                    id_,
                    fix='Set a new checkpointLocation, or accept the loss with .option("failOnDataLoss", "false").',
                    partition=partition,
                )
            offset = None
        elif offset is None and bounds[key].earliest > 0 and fail_on_data_loss:
            # A new partition is read from its beginning, and retention has deleted that already.
            raise data_loss(key, 0, f"the partition is new, and its log begins at {bounds[key].earliest}")
        begins[key] = (
            bounds[key].earliest
            if offset is None
            else checked_start(key, offset, bounds[key], fail_on_data_loss=fail_on_data_loss)
        )
    return begins


def limit_ends(
    begins: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], most: int
) -> dict[TopicPartition, int]:
    """Return ends with at most `most` offsets in all, shared in proportion to what each partition has.

    Args:
        begins: The begin of each partition.
        ends: Its end, not before the begin.
        most: The limit, at least 1.
    """
    sizes = {key: ends[key] - begin for key, begin in begins.items()}
    total = sum(sizes.values())
    if total <= most:
        return dict(ends)
    shares = {key: size * most // total for key, size in sizes.items()}
    # Rounding leaves less than one offset per partition. Partitions without a share come first, so that a small
    # partition beside a large backlog is read as well, then the largest.
    order = sorted(
        (key for key, size in sizes.items() if size > shares[key]), key=lambda k: (shares[k] > 0, -sizes[k], k)
    )
    for key in order[: most - sum(shares.values())]:
        shares[key] += 1
    return {key: begin + shares[key] for key, begin in begins.items()}


def ranges_between(start: StreamOffset | None, end: StreamOffset) -> list[OffsetRange]:
    """Return the ranges of a batch, by the two offsets alone."""
    before = {} if start is None else start.offsets
    return [
        OffsetRange(topic=topic, partition=partition, start=begin, end=last, topic_id=end.topic_ids.get(topic, ""))
        for (topic, partition), last in end.offsets.items()
        if (begin := end.starts.get((topic, partition), before.get((topic, partition), last))) < last
    ]


def _flat(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, int]:
    return {(topic, int(number)): int(offset) for topic, by in nested.items() for number, offset in by.items()}


def _nested(flat: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(flat.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested
