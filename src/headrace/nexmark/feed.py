"""Events into topics, one topic per kind, with the id that the kind is keyed by as the record's key."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.nexmark.events import KEYS, KINDS, Kind, Workload, count_events, generate, topic_of

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.producer import Producer

__all__ = ["create_topics", "encode_events", "send_events"]

CHUNK = 20_000  # positions made at once: their columns stay in the processor's cache
Progress = Callable[[int], None]


def encode_events(batch: pa.RecordBatch, kind: Kind) -> tuple[pa.Array, pa.Array]:
    """Return keys and JSON values of the events of one kind.

    The key is the id as decimal text, for auctions and their bids the same text: a Java application reads it as a
    string, and both topics are partitioned alike.
    """
    # Compiled kernels: imported here, because generating needs none.
    from headrace.spark.formats.json_encoding import encode_json

    keys = batch.column(KEYS[kind]).cast(pa.string()).cast(pa.binary())
    return keys, encode_json(batch, batch.schema.names)


def create_topics(admin: Admin, partitions: int, *, prefix: str, workload: Workload, events: int) -> bool:
    """Create the three topics; return whether they already hold these events.

    Raises:
        ConfigError: `topic-exists`, if a topic holds another number of events.
    """
    # Equal counts are taken for equal events, which are a function of the workload. Events of another workload with the
    # same counts show in the comparison of results.
    topics = {topic_of(kind, prefix): partitions for kind in KINDS}
    admin.create_topics(topics, exist_ok=True)
    wanted = {topic_of(kind, prefix): count for kind, count in count_events(workload, 0, events).items()}
    found = {topic: _records(admin, topic) for topic in topics}
    if not any(found.values()):
        return False
    if found == wanted:
        return True
    topic = next(topic for topic in topics if found[topic] != wanted[topic])
    raise ConfigError(
        "topic-exists",
        f"{topic} holds {found[topic]:,} records, and {wanted[topic]:,} events of this workload were expected.",
        f"Delete the topics {prefix}-*, or name others: --prefix NAME.",
    )


def _records(admin: Admin, topic: str) -> int:
    partitions = admin.client.known_topics([topic], refresh=True).topics[topic].partitions
    # End offsets count records here: the topics are written without transactions, whose markers would take offsets.
    ends = admin.list_offsets({(topic, int(partition)): "latest" for partition in partitions})
    return sum(end.offset for end in ends.values())


def send_events(
    producer: Producer,
    workload: Workload,
    start: int,
    stop: int,
    *,
    prefix: str,
    timestamps_ms: int | None = None,
    on_progress: Progress = lambda _sent: None,
) -> None:
    """Send the events at positions [start, stop) in their order, and wait until they are stored.

    Args:
        producer: Of the cluster that has the topics.
        workload: The data set.
        start: First position.
        stop: Position behind the last.
        prefix: Of the topics' names.
        timestamps_ms: Of the records; None takes the clock, because retention would delete records as old as the
            events' own times.
        on_progress: Called with the number of events sent so far.

    Raises:
        BrokerError: if the broker refuses records.
    """
    # The three kinds of a chunk are sent one after another. Topics keep the order of their own events; between topics
    # it is off by a chunk, 2 s of event time at the default rate; the watermarks of the queries allow 4 s.
    for begin in range(start, stop, CHUNK):
        end = min(begin + CHUNK, stop)
        for kind, batch in generate(workload, begin, end).items():
            keys, values = encode_events(batch, kind)
            producer.send(topic_of(kind, prefix), None, keys, values, timestamps_ms=timestamps_ms)
        on_progress(end - start)
    producer.flush()
