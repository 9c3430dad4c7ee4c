"""Starts of a query without Spark: its tasks write, its driver commits or dies, on any cluster."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.broker.embedded import EmbeddedBroker
from headrace.client.admin import Admin
from headrace.client.fetcher import Fetcher
from headrace.client.network_client import NetworkClient
from headrace.spark.data_source.commit_record import CommitRecord, TaskTransaction, transactional_id_prefix
from headrace.spark.data_source.commit_steps import Batch, Effect, TaskReport, abort_batch, commit_batch
from headrace.spark.data_source.row_writer import write_task
from headrace.spark.data_source.sink_options import SinkOptions
from headrace.spark.data_source.sink_transactions import SinkTransactions, open_transactions

__all__ = [
    "QUERY",
    "Crash",
    "Query",
    "ids_open_on",
    "open_ids",
    "options_of",
    "query_on",
    "read",
    "read_committed",
    "record",
    "rows",
    "task",
]

QUERY = "4d2c17a3-89ab-4ac1-84ae-cc61aaac406e"


class Crash(Exception):
    """The driver died."""


class DyingTransactions(SinkTransactions):
    """A driver that dies before its n-th request, or behind it."""

    def __init__(self, *given: Any, effects: int, applied: bool) -> None:
        super().__init__(*given)
        self.left, self.applied = effects, applied

    def _apply(self, effect: Effect) -> Any:
        self.left -= 1
        if self.left == 0:
            if self.applied:
                super()._apply(effect)
            raise Crash
        return super()._apply(effect)


def options_of(servers: str, **more: str) -> SinkOptions:
    """Options of a sink to `orders`; an empty one is left out."""
    given = {"kafka.bootstrap.servers": servers, "topic": "orders"} | more
    return SinkOptions.parse({name: value for name, value in given.items() if value})


def rows(*values: Any, **columns: pa.Array) -> list[pa.RecordBatch]:
    """One batch of rows as Spark passes them."""
    return [pa.RecordBatch.from_pydict({"value": pa.array(values, pa.string()), **columns})]


class Query:
    """One start of a query: its tasks and its driver."""

    def __init__(self, servers: str, run: str, *, query_id: str, **options: str) -> None:
        self.servers, self.run, self.query_id = servers, run, query_id
        self.options = options_of(servers, **options)

    def batch(self, number: int) -> Batch:
        return Batch(query_id=self.query_id, run_id=self.run, batch_id=number, rewrite=self.options.rewrite_batch_id)

    def write(self, number: int, *tasks: Sequence[str], attempt: int = 0) -> list[TaskReport]:
        """Write the rows of each task; the reports as the driver gets them."""
        reports = [
            write_task(rows(*values), self.options, self.batch(number), task=at, attempt=attempt)
            for at, values in enumerate(tasks)
        ]
        return pickle.loads(pickle.dumps(reports))  # type: ignore[no-any-return]

    def commit(self, number: int, reports: list[TaskReport], *, effects: int = 0, applied: bool = False) -> None:
        """Commit, or die at the `effects`-th request."""
        topics = {topic for each in reports for topic in each.topics}
        with NetworkClient(self.servers) as client:
            cluster = DyingTransactions(
                client, self.options, self.batch(number), topics, effects=effects, applied=applied
            )
            cluster.run(commit_batch(self.batch(number), reports))

    def abort(self, number: int, reports: list[TaskReport]) -> None:
        with NetworkClient(self.servers) as client:
            cluster = SinkTransactions(client, self.options, self.batch(number), ())
            cluster.run(abort_batch(self.batch(number), reports))


def read_committed(servers: str, topic: str) -> list[str]:
    """The committed values of a topic, sorted; all that is open is left out."""
    with NetworkClient(servers) as client:
        admin = Admin(client)
        partitions = [(topic, number) for number in client.known_topics([topic], refresh=True).topics[topic].partitions]
        ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
        ranges = {key: (0, found.offset) for key, found in ends.items() if found.offset > 0}
        fetched = Fetcher(client, isolation_level="read_committed").fetch_ranges(ranges, columns=("value",))
        return sorted(value.decode() for each in fetched for value in each.table.column("value").to_pylist())


def open_ids(servers: str, query_id: str) -> list[str]:
    """Transactional ids of a query whose transactions are open."""
    with NetworkClient(servers) as client:
        return open_transactions(client, transactional_id_prefix(query_id))


def query_on(broker: EmbeddedBroker, run: str, **options: str) -> Query:
    return Query(broker.bootstrap_servers, run, query_id=QUERY, **options)


def read(broker: EmbeddedBroker, topic: str = "orders") -> list[str]:
    return sorted(each.value.decode() for each in broker.records(topic) if each.value is not None)


def ids_open_on(broker: EmbeddedBroker) -> list[str]:
    return open_ids(broker.bootstrap_servers, QUERY)


def task(number: int = 0, *, attempt: int = 0, epoch: int = 0) -> TaskTransaction:
    return TaskTransaction(task=number, attempt=attempt, producer_id=4000 + number, producer_epoch=epoch)


def record(number: int, *, run: str = "run1", incarnation: int = 3, **more: Any) -> CommitRecord:
    return CommitRecord(batch_id=number, run_id=run, incarnation=incarnation, **more)
