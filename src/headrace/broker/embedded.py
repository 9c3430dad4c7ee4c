"""A broker inside this process: for tests, notebooks and `--dev`. Any Kafka client can use it.

The broker runs on an event loop in a thread of its own, so `with` and `async with` are the same thing and every method
may be called from any other thread. `kill()` is what kill -9 leaves behind; `restart()` starts again on the same port
and data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from headrace.broker.broker_thread import BrokerThread
from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.embedded_values import Key, Record, Value, key_bytes, record_of, value_bytes
from headrace.broker.faults import Faults
from headrace.broker.logs.partition_logs import AppendRefused, end_of
from headrace.broker.manual_clock import ManualClock
from headrace.broker.metadata.topic_administration import TopicRefused
from headrace.broker.services import Services
from headrace.checked_api import checked_api
from headrace.errors import BrokerError, HeadraceError
from headrace.metrics.prometheus_text import sample_name
from headrace.protocol.error_codes import ErrorCode, is_retriable, kafka_name
from headrace.protocol.partitioner import partition_for_key
from headrace.protocol.record_batches import AbortedTransaction, PlainRecord, decode_records, encode_batch
from headrace.temporary_directories import OwnedDirectory

__all__ = ["EmbeddedBroker", "EmbeddedGroup", "Record"]

Result = TypeVar("Result")
# With records of up to 1 KiB a batch stays below the default max.message.bytes (1,048,588).
BATCH_RECORDS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedGroup:
    """A group as the coordinator sees it. `state`: Empty, NotReady, Assigning, Reconciling, Stable, Dead.

    `members` maps member ids to their active tasks, `subtopology → partitions`, or in a group of consumers to what
    they read, `topic → partitions`; `offsets` maps (topic, partition).
    """

    group_id: str
    state: str
    group_type: str
    group_epoch: int
    assignment_epoch: int
    members: Mapping[str, Mapping[str, tuple[int, ...]]]
    offsets: Mapping[tuple[str, int], int]


@checked_api()
class EmbeddedBroker:
    """See the module's text. `topics` are created at the start, name → partitions; `config` has Kafka's names.

    `faults` make chosen requests fail, wait or lose their answers (docs/how-to/testing.md); they outlive `restart`.
    With `clock=ManualClock()` nothing becomes due until `clock.advance(seconds=…)`.

    Without `data_dir` the data lies in a temporary directory that is removed at the end. `metrics_port` 0 takes a free
    port; None serves no metrics over HTTP.
    Raises ConfigError and StateError when it cannot start.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        *,
        data_dir: Path | str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        config: Mapping[str, object] | None = None,
        metrics_port: int | None = None,
        clock: ManualClock | None = None,
    ) -> None:
        self._topics = dict(topics or {})
        self._clock = clock
        self.faults = Faults()
        self._metrics_port = metrics_port
        self._given_directory = Path(data_dir) if data_dir is not None else None
        self._host = host
        self._port = port
        self._config = dict(config or {})
        self._directory: Path | None = None
        self._owned: OwnedDirectory | None = None
        self._running: BrokerThread | None = None

    def start(self) -> Self:
        if self._running is not None:
            return self
        # A restart keeps the directory, so what was written is read again; only `stop` removes a temporary one.
        if self._directory is None:
            if self._given_directory is not None:
                self._directory = self._given_directory
            else:
                self._owned = OwnedDirectory("headrace-broker-")
                self._directory = self._owned.path / "data"
        try:
            configuration = BrokerConfiguration.from_settings(
                self._directory, host=self._host, port=self._port, settings=self._config
            )
            self._running = BrokerThread(configuration, self._metrics_port, self.faults, self._clock)
            self._running.start()
        # A start that failed leaves no thread and no directory behind.
        except BaseException:
            self._running = None
            self._remove_directory()
            raise
        # From now on the port is fixed: clients of before a restart reach the same address.
        self._port = self._running.server.port
        self._metrics_port = self._running.server.metrics_port
        if self._topics:
            self.create_topics(self._topics)
        return self

    def stop(self) -> None:
        """Stop gracefully: all data is on the disk, or deleted if the directory was a temporary one."""
        if self._running is not None:
            running, self._running = self._running, None
            running.stop()
        self._remove_directory()

    def kill(self) -> None:
        """Stop as kill -9 would: sockets are reset, files are left as they are. `restart()` recovers from them."""
        if self._running is not None:
            running, self._running = self._running, None
            running.kill()

    def restart(self) -> None:
        """Start again on the same port and data; stop gracefully first if it still runs."""
        if self._running is not None:
            running, self._running = self._running, None
            running.stop()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        # The start blocks until the broker answers, which must not hold up the test's own loop.
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)

    @property
    def clock(self) -> ManualClock:
        """The manual clock that the broker was given. Raises HeadraceError `clock-misused` when it runs on the real
        time."""
        if self._clock is None:
            raise HeadraceError(
                "clock-misused",
                "This broker runs on the real time, which cannot be advanced.",
                "Start it with EmbeddedBroker(clock=ManualClock()); ManualClock is in headrace.testing.",
            )
        return self._clock

    @property
    def host(self) -> str:
        return self._host

    @property
    def port(self) -> int:
        return self._port

    @property
    def metrics_port(self) -> int | None:
        """The port of GET /metrics on 127.0.0.1; None if metrics were not requested."""
        return self._metrics_port

    @property
    def bootstrap_servers(self) -> str:
        # IPv6 addresses need brackets before a port (RFC 3986).
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def ports(self) -> Mapping[str, int]:
        """Listener name → the port in fact taken, while it runs."""
        server = self._thread().server
        return {name: each.port for name, each in server.listeners.listeners.items()}

    def add_scram_users(self, users: Iterable[str]) -> None:
        """Add SCRAM credentials in kafka-storage's form: `SCRAM-SHA-512=[name=alice,password=secret]`.

        Raises ConfigError.
        """
        from headrace.broker.security.secured_listener import parse_added_user

        # Derived on the caller's thread: salting a password takes 4,096 or more rounds of HMAC, which would hold up the
        # broker's loop.
        added = [parse_added_user(user) for user in users]
        self._call(lambda services: services.scram_credentials.replace(added))

    @property
    def data_dir(self) -> Path:
        if self._directory is None:
            raise HeadraceError(
                "broker-stopped", "The broker was not started.", "Use it in a `with` block, or call start()."
            )
        return self._directory

    @property
    def running(self) -> bool:
        return self._running is not None

    @property
    def connection_count(self) -> int:
        """Number of clients that are connected."""
        return self._running.server.connection_count if self._running is not None else 0

    def metrics(self) -> dict[str, float]:
        """Return all metrics under their Prometheus names: `name{label="value",…}` → value.

        docs/reference/metrics.md lists them.
        """
        running = self._running

        def read(_services: Services) -> dict[str, float]:
            families = running.server.metric_families() if running is not None else ()
            return {sample_name(family, each): each.value for family in families for each in family.samples}

        return self._call(read)

    def create_topics(self, topics: Mapping[str, int], configs: Mapping[str, str] | None = None) -> None:
        """Create what does not exist yet. Raises BrokerError where Kafka would refuse."""

        def create(services: Services) -> None:
            for name, partitions in topics.items():
                if services.metadata.topic(name) is None:
                    services.topics.create(name, partitions=partitions, configs=dict(configs or {}))

        self._call(create)

    def delete_topics(self, names: Iterable[str]) -> None:
        """Delete what exists of them, with all records."""

        def delete(services: Services) -> None:
            for name in names:
                description = services.metadata.topic(name)
                if description is not None:
                    services.topics.delete(description)

        self._call(delete)

    def produce(
        self,
        topic: str,
        values: Iterable[Value],
        key: Key = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Append records; return when they are in the log. Text is UTF-8, a mapping becomes JSON, None a tombstone.

        `key` is a field's name where values are mappings, the key itself where they are not, or a function of a value.
        Records with a key go where Kafka's own partitioner would put them, others round robin.
        """
        # Encoded on the caller's thread: a value that cannot be encoded fails there, before anything is appended.
        prepared = [(key_bytes(key, value), value_bytes(value)) for value in values]

        def append(services: Services) -> None:
            description = services.metadata.topic(topic)
            if description is None:
                # Whatever auto.create.topics.enable says: the method is for tests, which name the topics that they
                # want.
                description, _ = services.topics.create(topic)
            if description is None:
                raise RuntimeError("a created topic is described")
            by_partition: dict[int, list[PlainRecord]] = {}
            for number, (key_or_none, value_or_none) in enumerate(prepared):
                chosen = partition
                # The hash of Kafka's own partitioner (murmur2), so that a test may rely on where a key goes.
                if chosen is None and key_or_none is not None:
                    chosen = partition_for_key(key_or_none, description.partitions)
                record = PlainRecord(
                    key=key_or_none,
                    value=value_or_none,
                    timestamp_ms=services.logs.now_ms() if timestamp_ms is None else timestamp_ms,
                )
                target = number % description.partitions if chosen is None else chosen
                by_partition.setdefault(target, []).append(record)
            for index, records in by_partition.items():
                # In batches, since one batch of all records might be above the topic's max.message.bytes.
                for start in range(0, len(records), BATCH_RECORDS):
                    services.logs.append(description, index, encode_batch(records[start : start + BATCH_RECORDS]))

        self._call(append)

    def records(self, topic: str) -> list[Record]:
        """Return the committed records of the topic now, by partition and offset, without waiting."""

        def read(services: Services) -> list[Record]:
            description = services.metadata.topic(topic)
            if description is None:
                raise TopicRefused(ErrorCode.unknown_topic_or_partition, f"There is no topic {topic}.")
            found = []
            for index in range(description.partitions):
                view = services.logs.view(description, index)
                position = view.log_start_offset
                stable = view.last_stable_offset
                # Chunk by chunk up to the last stable offset, as a consumer with isolation.level=read_committed reads.
                while position < stable:
                    chunk = view.read(position, 1 << 20, min_one_batch=True, end_offset=stable)
                    if not chunk:
                        break
                    end = position
                    aborted = view.aborted_transactions(position, len(chunk), stable)
                    for record in decode_records(
                        chunk, aborted_transactions=[AbortedTransaction(*each) for each in aborted]
                    ):
                        end = record.offset + 1
                        # A chunk begins with a whole batch, which may begin before the position.
                        if record.offset >= position:
                            found.append(record_of(topic, index, record))
                    # Compaction and aborted transactions leave gaps, so the next position follows from the batches, not
                    # from the records.
                    position = max(end, end_of(chunk))
            return found

        return self._call(read)

    def group(self, group_id: str) -> EmbeddedGroup:
        """Return the state of a group; one that does not exist is Dead, as in Kafka."""
        from headrace.broker.embedded_values import describe_group

        def describe(services: Services) -> EmbeddedGroup:
            return EmbeddedGroup(**describe_group(services, group_id))

        return self._call(describe)

    def _thread(self) -> BrokerThread:
        if self._running is None:
            raise HeadraceError("broker-stopped", "The broker does not run.", "Start it: `with`, start() or restart().")
        return self._running

    def _call(self, function: Callable[[Services], Result]) -> Result:
        try:
            return self._thread().call(function)
        # Refusals of the broker become the error that a client would see, with Kafka's name and code.
        except (AppendRefused, TopicRefused) as refused:
            raise BrokerError(
                "topic-missing" if refused.code is ErrorCode.unknown_topic_or_partition else "refused",
                refused.message or kafka_name(refused.code),
                kafka_code=int(refused.code.value),
                kafka_name=kafka_name(refused.code),
                retriable=is_retriable(refused.code),
            ) from None

    def _remove_directory(self) -> None:
        if self._owned is not None:
            self._owned.remove()
            self._owned = self._directory = None
