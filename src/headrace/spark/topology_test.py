"""`TopologyTest`: run an application in a unit test, without broker, group, processes or network.

The counterpart of Kafka Streams' TopologyTestDriver. Everything but the cluster is real: the compiled topology,
decoding, Spark SQL, operators with their LMDB stores in a temporary directory, encodings, repartition topics and
changelogs.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headrace.broker.embedded_values import Key, Record
from headrace.call_sites import call_site
from headrace.checked_api import checked_api
from headrace.errors import HeadraceError
from headrace.spark.frames import quoted
from headrace.spark.runtime.chains import source_topics
from headrace.spark.runtime.in_process_application import InProcessApplication, Offsets
from headrace.spark.runtime.memory_topics import MemoryTopics, MemoryWriter
from headrace.spark.runtime.rows.row_schema import store_of, store_of_deduplication
from headrace.spark.runtime.stores.state_reading import read_aggregate, read_deduplication
from headrace.spark.topology.nodes import (
    Aggregate,
    CompiledSubtopology,
    CompiledTopology,
    Deduplication,
    KeyedOperator,
    RepartitionSink,
    RepartitionSource,
    TopicSink,
    TopicSource,
)
from headrace.spark.unsupported import refusal
from headrace.spark.verification.tested_records import (
    Rows,
    decode_sink_values,
    encode_source_rows,
    key_value,
    record_keys,
)
from headrace.suggestions import nearest
from headrace.temporary_directories import OwnedDirectory

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration

__all__ = ["TopologyTest"]

_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@checked_api(unchecked=("rows", "key", "app", "partitions", "headers"))
class TopologyTest:
    """An application that runs in the calling thread, on topics in memory.

    One instance owns all tasks and processes exactly once. `read`, `table` and `state` process what was pushed before
    they answer. A micro-batch takes all input that there is, so an aggregate writes one row for each key that changed
    since the last `run`. Belongs to one thread.

    Example:
        with TopologyTest(app) as test:
            test.push("flights", [{"origin": "JFK", "dep_delay": 3.0}])
            assert test.read("origin-delays") == [{"origin": "JFK", "flights": 1, "mean_delay": 3.0}]
    """

    __test__ = False  # pytest does not collect it

    def __init__(
        self,
        app: ApplicationDeclaration,
        *,
        partitions: int | Mapping[str, int] = 1,
        now_ms: int | None = None,
    ) -> None:
        """Compile the application and open its tasks. It needs neither topics nor a cluster.

        Args:
            app: The application. It is not started, and may be started later.
            partitions: Of each topic, or by topic; a topic that is not named has one. Internal topics have as many as
                the group coordinator would give them.
            now_ms: The processing time to begin with, in ms since the epoch; None takes the present. It stands still:
                see `advance`.

        Raises:
            TopologyError: the application cannot run, or `partitions` names a topic that it does not have.
        """
        self._compiled = app.compile()
        self._settings = app._settings()
        self._sources = {
            topic: source
            for part in self._compiled.subtopologies
            for source in part.sources
            if isinstance(source, TopicSource)
            for topic in source.topics
        }
        self._sinks: dict[str, TopicSink] = {sink.topic: sink for sink in self._compiled.topic_sinks()}
        started_ms = int(time.time() * 1000) if now_ms is None else now_ms
        self._topics = MemoryTopics(_partition_counts(self._compiled, partitions), started_ms)
        self._offsets: Offsets = {}
        self._read: dict[str, int] = {}  # batches of a topic that `read` has returned
        self._error: BaseException | None = None  # that ended the application
        self._is_closed = False
        # Removed by the next process if this one is killed.
        self._directory = OwnedDirectory("headrace-topology-test-")
        try:
            self._instance = self._start()
        except BaseException:
            self._directory.remove()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the stores and remove them."""
        if not self._is_closed:
            self._is_closed = True
            self._instance.close()
            self._directory.remove()

    # -- input --------------------------------------------------------------------------------------------------------

    def push(
        self,
        topic: str,
        rows: Rows,
        *,
        key: Key | Sequence[object] = None,
        partition: int | None = None,
        timestamp_ms: int | Sequence[int] | None = None,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        """Append records to a source topic. Nothing is processed before `run`, or before something is read.

        Args:
            topic: A topic that the application reads.
            rows: Mappings, which are encoded by the source's formats; bytes or text, which are the record's value; None
                for a tombstone; or an Arrow table.
            key: The name of a column where rows are mappings, the key itself where they are not, a function of a row,
                or a list with the key of each row. Keys that are not bytes are encoded by the source's `key_format`,
                else as text. None: the column that the source names as its key, else no key.
            partition: None: by Kafka's partitioner; rows without a key are spread.
            timestamp_ms: Of all rows, or of each; None: the processing time.
            headers: Of all rows.

        Raises:
            TopologyError: topic-missing; unresolved-column for a column that the source does not have; bad-value.
        """
        source = self._source(topic)
        given, values = encode_source_rows(rows, source)
        keys = record_keys(key, given, source)
        counted = self._topics.partition_count(topic)
        if partition is not None and not 0 <= partition < counted:
            raise refusal(
                "bad-value",
                f"{topic} has no partition {partition}, it has {counted}",
                f'TopologyTest(app, partitions={{"{topic}": {partition + 1}}})' if partition >= 0 else "0 or more",
                call_site(),
            )
        when: Any = self._topics.clock_ms if timestamp_ms is None else timestamp_ms
        if not isinstance(when, int):
            when = pa.array(when, pa.int64()).to_numpy()
        # One list of headers, repeated by reference for each row.
        pairs = [[{"key": name, "value": value} for name, value in headers]] * len(given)
        writer = MemoryWriter(self._topics)
        writer.send(
            topic, partition, keys, values, timestamps_ms=when, headers=pa.array(pairs, _HEADERS) if headers else None
        )

    def run(self) -> None:
        """Process what was pushed, through all subtopologies, until nothing is left.

        Raises:
            RecordError: a record that cannot be processed, where `on_error` is "fail". The records before it are
                processed.
            UserCodeError: a `foreachBatch` function raised.
            HeadraceError: anything else that ends an application.
        """
        if self._error is not None:
            raise self._error
        try:
            self._instance.run()
        # Kept, so that every later call fails in the same way instead of continuing behind a record that was not
        # processed.
        except BaseException as error:
            self._error = error
            raise

    def advance(self, ms: int) -> None:
        """Move the processing time: the timestamps of records that are pushed and written from now on, and the time
        that timers of stateful processors wait for.

        Event time comes from the records alone: push later ones.
        """
        if ms < 0:
            raise refusal("bad-value", f"Invalid ms {ms}: time does not go back", "0 or more", call_site())
        self._topics.clock_ms += ms

    @property
    def now_ms(self) -> int:
        """The processing time, in ms since the epoch."""
        return self._topics.clock_ms

    def restart(self) -> int:
        """Process what was pushed, lose all stores as with a lost disk, and restore them from their changelogs.

        Returns:
            The number of changelog records that were replayed.
        """
        self._run_unless_failed()
        self._instance.close()
        # Topics and offsets stay, stores are gone: the restore from changelogs is the real one.
        shutil.rmtree(self._state_dir, ignore_errors=True)  # it is made with the first store
        self._instance = self._start()
        self._error = None
        return sum(part.progress.restored for part in self._instance.subtopologies.values())

    # -- results ------------------------------------------------------------------------------------------------------

    def read(self, topic: str) -> list[Any]:
        """Return the rows of a sink topic that no `read` has returned yet, in the order in which they were written.

        A row is a dict with the values that JSON has for it (Avro, Protobuf: Python's), text or bytes, by the sink's
        format; a tombstone is None. Across partitions, the order is that of the writes.
        """
        sink = self._sink(topic)
        self._run_unless_failed()
        first, self._read[topic] = self._read.get(topic, 0), self._topics.batch_count(topic)
        return decode_sink_values([record.value for record in self._records(topic, first)], sink)

    def records(self, topic: str) -> list[Record]:
        """Return all records of any topic of the application, internal and dead-letter topics included, as bytes."""
        self._check_topic(topic)
        self._run_unless_failed()
        return self._records(topic, 0)

    def table(self, topic: str) -> dict[Any, Any]:
        """Return the newest row of each key of a sink topic, without deleted keys.

        Keys are values of the sink's `key_format`; without one text, or bytes where they are no UTF-8. A record without
        a key has no row.
        """
        sink = self._sink(topic)
        self._run_unless_failed()
        newest: dict[bytes, bytes] = {}
        for record in self._records(topic, 0):
            if record.key is None:
                continue
            # Removed first, so that the order of the dictionary is that of the last writes.
            newest.pop(record.key, None)
            if record.value is not None:
                newest[record.key] = record.value
        rows = decode_sink_values(list(newest.values()), sink)
        return {key_value(key, sink): row for key, row in zip(newest, rows, strict=True)}

    def state(self, name: str) -> dict[Any, Any]:
        """Return the contents of a state store, over all tasks.

        Args:
            name: Of the store: the `name` of `agg` or `dropDuplicatesWithinWatermark`, as `describe` shows it.

        Returns:
            For an aggregate, grouping value (a tuple, if there are several columns) → row of the aggregate, before any
            calls behind it. For a deduplication, key → newest event time that was kept.
        """
        part, operator = self._store(name)
        self._run_unless_failed()
        if not isinstance(operator, (Aggregate, Deduplication)):
            raise refusal(
                "not-supported-here",
                f'the store "{name}" cannot be shown as rows',
                f'test.table(..) of the topic behind it, or test.records("{operator.changelog_topic}")',
                call_site(),
            )
        if isinstance(operator, Deduplication):
            stores = self._instance.open_stores(part.subtopology_id, store_of_deduplication(operator))
            return {key: at for store in stores.values() for key, at in read_deduplication(store, operator).items()}
        return self._aggregate_rows(part, operator)

    @property
    def progress(self) -> list[dict[str, Any]]:
        """Micro-batches since the last restart, with the keys of `RunningApp.recentProgress`.

        `skippedRecords`, `deadLetters` and `numRowsDroppedByWatermark` count what came to no result.
        """
        self._run_unless_failed()
        parts = self._instance.subtopologies.values()
        return sorted((row for part in parts for row in part.progress.recent()), key=lambda row: str(row["timestamp"]))

    def __repr__(self) -> str:
        return f"TopologyTest({self._settings.name!r}, {len(self._compiled.subtopologies)} subtopologies)"

    # -- internals ----------------------------------------------------------------------------------------------------

    @property
    def _state_dir(self) -> Path:
        return self._directory.path / "state"

    def _start(self) -> InProcessApplication:
        return InProcessApplication(
            self._settings,
            self._compiled,
            self._topics,
            self._offsets,
            state_dir=self._state_dir,
            incarnation=uuid.uuid4().hex[:12],
        )

    def _run_unless_failed(self) -> None:
        """Process what was pushed, unless the application has failed: its results until then can still be read."""
        if self._error is None:
            self.run()

    def _records(self, topic: str, first: int) -> list[Record]:
        return [
            Record(
                topic=topic,
                partition=partition,
                offset=row["offset"],
                timestamp_ms=row["timestamp"],
                key=row["key"],
                value=row["value"],
                headers=tuple((pair["key"], pair["value"]) for pair in row["headers"] or ()),
            )
            for partition, batch in self._topics.batches(topic, first)
            for row in batch.to_pylist()
        ]

    def _store(self, name: str) -> tuple[CompiledSubtopology, KeyedOperator | Deduplication]:
        known: dict[str, tuple[CompiledSubtopology, KeyedOperator | Deduplication]] = {
            operator.name: (part, operator)
            for part in self._compiled.subtopologies
            for branch in part.branches
            for operator in (branch.closed, branch.operator, branch.deduplication)
            if operator is not None
        }
        if name not in known:
            raise _unknown("bad-value", f'the application has no store "{name}"', name, known, "stores")
        return known[name]

    def _aggregate_rows(self, part: CompiledSubtopology, aggregate: Aggregate) -> dict[Any, Any]:
        spec = store_of(aggregate)
        keys: dict[int, dict[bytes, None]] = {}
        # Keys come from the changelog, because the store holds long keys as digests only.
        for record in self._records(spec.changelog_topic, 0):
            if record.key is not None:
                keys.setdefault(record.partition, {})[record.key] = None
        stores = self._instance.open_stores(part.subtopology_id, spec)
        found = pa.concat_tables(
            read_aggregate(store, aggregate, pa.array(list(keys.get(partition, ())), pa.binary()))
            for partition, store in stores.items()
        )
        if not found.num_rows:
            return {}
        groups = [found.column(f"g{at}").to_pylist() for at in range(len(aggregate.group_columns))]
        names = groups[0] if len(groups) == 1 else list(zip(*groups, strict=True))
        return dict(zip(names, self._results(found, aggregate).to_pylist(), strict=True))

    def _results(self, found: pa.Table, aggregate: Aggregate) -> pa.Table:
        """Return finished buffers as the rows of the aggregate."""
        if aggregate.bare and aggregate.window is None:
            names = [name for name, _ in aggregate.results]
            return pa.Table.from_arrays([found.column(sql.strip("`")) for _, sql in aggregate.results], names=names)
        frame = self._settings.spark.createDataFrame(found.combine_chunks())
        return frame.selectExpr(*(f"{sql} AS {quoted(name)}" for name, sql in aggregate.results)).toArrow()

    def _source(self, topic: str) -> TopicSource:
        if topic not in self._sources:
            raise _unknown(
                "topic-missing", f'the application reads no topic "{topic}"', topic, self._sources, "it reads"
            )
        return self._sources[topic]

    def _sink(self, topic: str) -> TopicSink:
        self._check_topic(topic)
        if topic not in self._sinks:
            raise refusal(
                "bad-value",
                f'"{topic}" is no topic that the application writes rows to with to_topic',
                f'test.records("{topic}") returns its bytes',
                call_site(),
            )
        return self._sinks[topic]

    def _check_topic(self, topic: str) -> None:
        if topic not in self._topics.names:
            raise _unknown(
                "topic-missing", f'the application has no topic "{topic}"', topic, self._topics.names, "topics"
            )


def _unknown(code: str, message: str, name: str, known: Iterable[str], label: str) -> HeadraceError:
    near = nearest(name, known)
    hint = f'; did you mean "{near}"?' if near else ""
    return refusal(code, f"{message}{hint}", f"{label}: {', '.join(sorted(known)) or 'none'}", call_site())


def _partition_counts(compiled: CompiledTopology, given: int | Mapping[str, int]) -> dict[str, int]:
    """Return the number of partitions of every topic of an application.

    A repartition topic has as many as the widest input of the subtopologies that write it, and a changelog as its
    subtopology has tasks, as the group coordinator derives them (KIP-1071).
    """
    counts: dict[str, int] = {}
    for part in compiled.subtopologies:
        for source in part.sources:
            if isinstance(source, TopicSource):
                counts |= dict.fromkeys((*source.topics, *source.dead_letter_topics), 1)
        counts |= {branch.sink.topic: 1 for branch in part.branches if isinstance(branch.sink, TopicSink)}
    _check_counts(counts, given)
    counts = dict.fromkeys(counts, given) if isinstance(given, int) else counts | dict(given)
    waiting = list(compiled.subtopologies)
    # Subtopologies in the order of their repartition topics: the counts of one follow from those that write it.
    while waiting:  # those behind repartition topics come after all that write them
        part = next(p for p in waiting if not _written_by(p, waiting))
        waiting.remove(part)
        tasks = max(counts[topic] for source in part.sources for topic in source_topics(source))
        for branch in part.branches:
            if isinstance(branch.sink, RepartitionSink):
                counts |= {topic: max(tasks, counts.get(topic, 0)) for topic in branch.sink.topics}
        counts |= dict.fromkeys(part.changelog_topics, tasks)
    return counts


def _written_by(part: CompiledSubtopology, others: Iterable[CompiledSubtopology]) -> bool:
    """Whether one of `others` writes a repartition topic that `part` reads."""
    read = {source.topic for source in part.sources if isinstance(source, RepartitionSource)}
    sinks = (branch.sink for other in others for branch in other.branches)
    return any(isinstance(sink, RepartitionSink) and not read.isdisjoint(sink.topics) for sink in sinks)


def _check_counts(known: Iterable[str], given: object) -> None:
    counts = given if isinstance(given, Mapping) else {"": given}
    for topic, count in counts.items():
        if topic and topic not in known:
            raise _unknown("topic-missing", f'the application has no topic "{topic}"', topic, known, "topics")
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise refusal(
                "bad-value", f"Invalid partitions {count!r}: expected a positive integer", "partitions=4", call_site()
            )
