"""`headrace nexmark`, step by step: a broker, the events, Spark, the query with its live view, the comparison."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headrace.cli.application import spark_quietly
from headrace.cli.demo.environment import HOST
from headrace.cli.instances import BrokerProcess, free_port
from headrace.cli.nexmark_view import NexmarkView
from headrace.cli.running import terminable
from headrace.cli.terminal import align, data, print_json
from headrace.client.admin import Admin
from headrace.client.producer import Producer
from headrace.nexmark.events import KINDS, Workload, count_events
from headrace.nexmark.feed import create_topics, send_events
from headrace.nexmark.queries import QUERIES, Query
from headrace.temporary_directories import OwnedDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from headrace.nexmark.runner import Observation, QueryRun, RunResult, SentEvents

__all__ = ["NexmarkOptions", "list_queries", "run_query"]

EQUAL, DIFFERS = 0, 4
_TICK_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class NexmarkOptions:
    """Options of the command line."""

    query: str
    events: int
    event_rate: int
    disorder: int
    seed: int
    send_rate: int | None
    partitions: int
    at_least_once: bool
    bootstrap_servers: str | None
    prefix: str
    as_json: bool

    @property
    def workload(self) -> Workload:
        return Workload(seed=self.seed, event_rate=self.event_rate, disorder=self.disorder)


def list_queries(*, as_json: bool) -> None:
    """Print the queries."""
    if as_json:
        rows = [{"query": q.name, "title": q.title, "result": q.kind} for q in QUERIES.values()]
        print_json({"queries": rows})
        return
    for line in align([[q.name, q.title] for q in QUERIES.values()]):
        data(line)


def run_query(options: NexmarkOptions) -> int:
    """Run, compare, print. Ctrl-C and SIGTERM stop the application, which commits and leaves, and the broker.

    Returns:
        0 if the result is equal to the recomputation, 4 if not.
    """
    from headrace.spark.spark_session import check_java

    query = QUERIES[options.query]
    workload = options.workload  # refuses wrong values before anything starts
    check_java()
    view = NexmarkView(as_json=options.as_json)
    view.start(query, options.events, workload)
    with (
        OwnedDirectory("headrace-nexmark-") as directory,
        terminable(),
        _broker(options, directory.path, view) as servers,
    ):
        result = _run_on(servers, query, workload, options, directory.path, view)
    assert result.comparison is not None
    view.verdict(result)
    if options.as_json:
        print_json({"options": asdict(options), **result.as_document()})
    return EQUAL if result.comparison.equal else DIFFERS


@contextlib.contextmanager
def _broker(options: NexmarkOptions, directory: Path, view: NexmarkView) -> Iterator[str]:
    if options.bootstrap_servers is not None:
        yield options.bootstrap_servers
        return
    broker = BrokerProcess(directory / "broker", HOST, free_port(HOST), log=directory / "broker.log")
    try:
        broker.start()
        view.step("broker", f"started at {broker.address}")
        yield broker.address
    finally:
        broker.stop()


def _run_on(
    servers: str, query: Query, workload: Workload, options: NexmarkOptions, directory: Path, view: NexmarkView
) -> RunResult:
    sender = _Sender(servers, query, workload, options)
    sender.prepare(view)
    with spark_quietly():
        view.step("spark", "starting …")
        # Here, because a session imports Spark's classes and starts a JVM: wrong options fail before.
        from headrace.nexmark.runner import QueryRun, RunOptions, delete_run_topics
        from headrace.spark.spark_session import session

        spark = session("headrace-nexmark", settings={"spark.sql.shuffle.partitions": "4"})
        # PySpark's own handler cancels all jobs on Ctrl-C, the micro-batch that is to be finished among them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run_options = RunOptions(
            events=options.events,
            workload=workload,
            partitions=options.partitions,
            guarantee="at_least_once" if options.at_least_once else "exactly_once_v2",
            prefix=options.prefix,
            run_id=f"{time.time_ns() // 1_000_000:x}",
            directory=directory,
        )
        try:
            with QueryRun(query, run_options, spark, servers) as run:
                result = _watched(run, sender, view)
                run.stop()
                view.step("verify", "everything again, as one Spark batch over the generated events …")
                return run.verify(result)
        finally:
            sender.stop()
            if options.bootstrap_servers is not None:
                delete_run_topics(query, run_options, servers)
            spark.stop()


def _watched(run: QueryRun, sender: _Sender, view: NexmarkView) -> RunResult:
    run.start()
    sender.start()

    def look(seen: Observation) -> None:
        sender.raise_error()
        view.look(seen, run.records)

    with view.live():
        return run.await_result(look, sent=sender.sent)


class _Sender:
    """The events of a run: sent before the query starts, or at a pace while it runs."""

    def __init__(self, servers: str, query: Query, workload: Workload, options: NexmarkOptions) -> None:
        self._servers, self._query, self._workload, self._options = servers, query, workload, options
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._send_paced, name="headrace-nexmark-events", daemon=True)
        self.sent: SentEvents | None = None

    def prepare(self, view: NexmarkView) -> None:
        """Create the topics; send everything unless there is a pace."""
        options = self._options
        with Admin(self._servers, client_id="headrace-nexmark") as admin:
            are_there = create_topics(
                admin, options.partitions, prefix=options.prefix, workload=self._workload, events=options.events
            )
            if are_there:
                view.step("events", f"the topics {options.prefix}-* hold them already")
                return
            if options.send_rate is not None:
                from headrace.nexmark.runner import SentEvents

                self.sent = SentEvents()
                view.step("events", f"{options.send_rate:,} per second, while the query runs")
                return
            began = time.monotonic()
            with Producer(admin.client) as producer:
                send_events(producer, self._workload, 0, options.events, prefix=options.prefix)
            view.step("events", f"{options.events:,} sent in {time.monotonic() - began:.1f} s")

    def start(self) -> None:
        """Begin to send, if there is a pace."""
        if self.sent is not None:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def _send_paced(self) -> None:
        try:
            with Admin(self._servers, client_id="headrace-nexmark") as admin, Producer(admin.client) as producer:
                self._send_on_time(producer)
        except BaseException as error:  # noqa: BLE001 - raised by the main thread
            self._error = error

    def _send_on_time(self, producer: Producer) -> None:
        assert self.sent is not None
        assert self._options.send_rate is not None
        began, done, records = time.monotonic(), 0, 0
        while done < self._options.events and not self._stop.wait(_TICK_SECONDS):
            # What is due by the rate, so that a send that took long is made up for.
            due = min(self._options.events, int((time.monotonic() - began) * self._options.send_rate))
            if due == done:
                continue
            now_s = time.monotonic()
            send_events(producer, self._workload, done, due, prefix=self._options.prefix)
            counts = count_events(self._workload, done, due)
            records += sum(counts[kind] for kind in KINDS if kind in self._query.inputs)
            done = due
            self.sent.add(records, now_s)
