"""One run of a query: its application over the event topics, what is observed meanwhile, and the comparison."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

from pyspark.sql import SparkSession

from headrace.client.admin import Admin
from headrace.errors import HeadraceError
from headrace.nexmark.events import KEYS, KINDS, SCHEMAS, Kind, Workload, count_events, topic_of
from headrace.nexmark.frames import event_frames
from headrace.nexmark.queries import Events, Query
from headrace.nexmark.verifier import Comparison, closed_before_ms, compare, rows_of_files, rows_of_topic
from headrace.spark.running_app import RunningApp
from headrace.spark.stream import Stream
from headrace.spark.streams_app import StreamsApp

__all__ = [
    "Observation",
    "QueryRun",
    "RunOptions",
    "RunResult",
    "SentEvents",
    "delete_run_topics",
    "event_streams",
    "topic_ranges",
]

Guarantee = Literal["at_least_once", "exactly_once_v2"]
OBSERVATION_INTERVAL_S = 0.1
_START_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Parameters of a run.

    Args:
        events: Number of events of all kinds.
        workload: Their seed, rate and disorder.
        partitions: Of the topic of the results.
        guarantee: Of the application.
        prefix: Of the topics' names.
        run_id: Part of the names of group and result topic: each run begins with the first event.
        directory: For state stores and result files.
    """

    events: int
    workload: Workload
    partitions: int
    guarantee: Guarantee
    prefix: str
    run_id: str
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """State of a running query.

    Args:
        records: Records of the event topics that are processed and committed.
        records_per_s: Over the last seconds.
        batch_ms: Duration of the last micro-batch.
        latency_ms: Age of the oldest event that was sent and is not committed; None when events are not sent meanwhile.
        watermark: As `lastProgress` reports it; empty without event time.
        state_rows: Of all stores.
        state_bytes: Of all stores.
    """

    records: int
    records_per_s: float
    batch_ms: int | None
    latency_ms: int | None
    watermark: str
    state_rows: int
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Figures of a run, from the moment that all tasks were open to the commit of the last event.

    Args:
        query: Name of the query.
        records: Records that the query reads.
        seconds: Duration.
        records_per_s: The ratio of the two.
        batches: Number of micro-batches.
        batch_ms: Median and maximum of their durations.
        latency_ms: Median and maximum of the observations; None when events were not sent meanwhile.
        last: The last observation.
        comparison: None if it was not asked for.
    """

    query: str
    records: int
    seconds: float
    records_per_s: int
    batches: int
    batch_ms: tuple[int, int]
    latency_ms: tuple[int, int] | None
    last: Observation
    comparison: Comparison | None = None

    def as_document(self) -> dict[str, Any]:
        document = asdict(self)
        if self.comparison is not None:
            document["comparison"] = self.comparison.as_document()
        return document


class SentEvents:
    """When how many records of a query's inputs were sent. Written by one thread, read by others."""

    def __init__(self) -> None:
        self._sent: list[tuple[int, float]] = []
        self._oldest = 0

    def add(self, records: int, now_s: float) -> None:
        self._sent.append((records, now_s))

    def age_s(self, committed: int, now_s: float) -> float:
        """Return the time since the first record beyond `committed` was sent; 0 if there is none."""
        # Both sequences only grow, so entries that are committed are never looked at again.
        while self._oldest < len(self._sent) and self._sent[self._oldest][0] <= committed:
            self._oldest += 1
        return now_s - self._sent[self._oldest][1] if self._oldest < len(self._sent) else 0.0


class QueryRun:
    """A query as a running application. A context manager; leaving it stops the application.

    Example:
        with QueryRun(QUERIES["q17"], options, spark, "localhost:9092") as run:
            result = run.await_result(lambda seen: print(seen.records))
    """

    def __init__(self, query: Query, options: RunOptions, spark: SparkSession, bootstrap_servers: str) -> None:
        """Declare the application; Spark and the topics of the events must exist.

        Raises:
            TopologyError: if streams lack an operator of the query.
        """
        self.query, self.options = query, options
        self._spark, self._servers = spark, bootstrap_servers
        self.group_id = _group_id(query, options)
        self.output_topic = f"{self.group_id}-results"
        self.output_path = options.directory / "files" / self.group_id
        self.app = self._declare()
        self._running: RunningApp | None = None
        self._began_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _declare(self) -> StreamsApp:
        options = self.options
        app = StreamsApp(
            self.group_id,
            spark=self._spark,
            bootstrap_servers=self._servers,
            state_dir=options.directory / "state" / self.group_id,
            processing_guarantee=options.guarantee,
        )
        rows = self.query.build(event_streams(app, options.prefix))
        if self.query.kind == "files":
            rows.to_parquet(self.output_path, partition_by=self.query.partition_by)
        else:
            rows.to_topic(
                self.output_topic,
                key=self.query.key,
                output_mode=self.query.output_mode,
                partitions=options.partitions,
            )
        return app

    @property
    def records(self) -> int:
        """Records that the query will read."""
        counts = count_events(self.options.workload, 0, self.options.events)
        return sum(counts[kind] for kind in KINDS if kind in self.query.inputs)

    def start(self) -> None:
        """Start the application, and return when all its tasks are open.

        Raises:
            HeadraceError: what kept it from starting.
        """
        self._running = self.app.start()
        # Neither the start of the JVM nor the first rebalance belongs to the figures of a query.
        self._running.wait_until("running", timeout=_START_SECONDS)
        self._began_s = time.monotonic()

    def stop(self) -> None:
        """Stop the application, if it was started."""
        if self._running is not None:
            self._running.stop()

    def observe(self, sent: SentEvents | None = None) -> Observation:
        """Return the state of the running application."""
        assert self._running is not None
        sample = self._running.progress_sample()
        # None until the first micro-batch is committed.
        last = self._running.lastProgress or {}
        tasks = self._running.tasks
        now_s = time.monotonic()
        return Observation(
            records=sample.records,
            records_per_s=sample.records / max(now_s - self._began_s, 1e-6),
            batch_ms=last.get("batchDuration"),
            latency_ms=None if sent is None else round(sent.age_s(sample.records, now_s) * 1000),
            watermark=_watermark(self._running.recentProgress),
            state_rows=sum(task.state_keys for task in tasks),
            state_bytes=sum(task.state_bytes for task in tasks),
        )

    def await_result(
        self,
        on_observation: Callable[[Observation], None] = lambda _seen: None,
        *,
        sent: SentEvents | None = None,
    ) -> RunResult:
        """Wait until the event topics, with all they hold at this moment or later, are processed and committed.

        Args:
            on_observation: Called with each observation, about ten times a second.
            sent: The events that are being sent meanwhile.

        Raises:
            HeadraceError: what ended the application.
        """
        assert self._running is not None
        wanted, ages = self.records, []
        while True:
            self._raise_error()
            seen = self.observe(sent)
            on_observation(seen)
            if seen.latency_ms is not None:
                ages.append(seen.latency_ms)
            if seen.records >= wanted:
                break
            time.sleep(OBSERVATION_INTERVAL_S)
        # Behind the sources come the repartition topics: the group's committed offsets decide.
        self._running.wait_until("caught-up", timeout=_START_SECONDS)
        seconds = time.monotonic() - self._began_s
        last = self.observe(sent)
        on_observation(last)
        progress = self._running.recentProgress
        durations = sorted(row["batchDuration"] for row in progress) or [0]
        return RunResult(
            query=self.query.name,
            records=wanted,
            seconds=round(seconds, 2),
            records_per_s=round(wanted / seconds),
            batches=len(progress),
            batch_ms=_median_and_maximum(durations),
            latency_ms=_median_and_maximum(sorted(ages)) if ages else None,
            last=last,
        )

    def _raise_error(self) -> None:
        assert self._running is not None
        error = self._running.exception()
        if error is not None:
            raise error
        if not self._running.isActive:
            raise HeadraceError("instance-failed", f"{self.group_id} ended by itself.", "See its log.")

    def verify(self, result: RunResult) -> RunResult:
        """Return the result with the comparison of its rows; the application should be stopped."""
        options = self.options
        events = event_frames(self._spark, options.workload, options.events)
        # The schema comes from the recomputation: a column that the result lacks is read as null, so its rows differ.
        schema = self.query.build(events).schema
        if self.query.kind == "files":
            found = rows_of_files(self._spark, self.output_path, schema)
        else:
            ranges = topic_ranges(self._servers, self.output_topic)
            is_table = self.query.kind == "table"
            found = rows_of_topic(self._spark, self._servers, ranges, schema, table=is_table)
        closed_ms = closed_before_ms(options.workload, options.events)
        return replace(result, comparison=compare(self.query, events, found, closed_ms=closed_ms))


def delete_run_topics(query: Query, options: RunOptions, bootstrap_servers: str) -> None:
    """Delete what only this run uses: the topics of results, repartitioning and changelogs, and the group."""
    group_id = _group_id(query, options)
    with Admin(bootstrap_servers, client_id="headrace-nexmark") as admin:
        run_topics = [name for name in admin.list_topics() if name.startswith(group_id)]
        admin.delete_topics(run_topics, missing_ok=True)
        with contextlib.suppress(HeadraceError):  # it was never made, or a member is still leaving
            admin.delete_groups([group_id])


def _group_id(query: Query, options: RunOptions) -> str:
    return f"{options.prefix}-{query.name}-{options.run_id}"


def event_streams(app: StreamsApp, prefix: str = "nexmark") -> Events:
    """Return the three event topics as streams of `app`."""

    def stream(kind: Kind) -> Stream:
        return app.stream(topic_of(kind, prefix), schema=SCHEMAS[kind], key=KEYS[kind])

    return Events(person=stream("person"), auction=stream("auction"), bid=stream("bid"), spark=app.spark)


def topic_ranges(bootstrap_servers: str, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the offsets [first, end of the committed records) of each partition."""
    with Admin(bootstrap_servers, client_id="headrace-nexmark") as admin:
        partitions = admin.client.known_topics([topic], refresh=True).topics[topic].partitions
        wanted = [(topic, int(partition)) for partition in partitions]
        first = admin.list_offsets(dict.fromkeys(wanted, "earliest"))
        last = admin.list_offsets(dict.fromkeys(wanted, "latest"), isolation_level="read_committed")
    return {where: (first[where].offset, last[where].offset) for where in wanted}


def _watermark(progress: list[dict[str, Any]]) -> str:
    marks = [str(row["eventTime"]["watermark"]) for row in progress if row.get("eventTime", {}).get("watermark")]
    return marks[-1] if marks else ""


def _median_and_maximum(ordered: list[int]) -> tuple[int, int]:
    return ordered[len(ordered) // 2], ordered[-1]
