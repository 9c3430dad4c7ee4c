"""A shard with its log in a list, run by the broker's own ShardRunner: what is written, what a restart would find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from headrace.broker.coordinators.coordinator_runtime import ShardRunner
from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.coordinator.transactions import transaction_log
from headrace.coordinator.transactions.shard import TransactionCoordinatorShard
from headrace.coordinator.transactions.transitions import Answer, ProducerIdentity, TransactionLogValue

__all__ = ["ListLog", "Shard"]

TID = "orders"
PARTS = (("a", 0), ("b", 1))


class ListLog:
    """Holds records as bytes, so that reading goes through the codec."""

    def __init__(self, version: Callable[[], int]) -> None:
        self.written: list[tuple[bytes, bytes | None]] = []
        self._version = version

    def append(self, records: Sequence[CoordinatorRecord], *, now_ms: int) -> None:
        version = transaction_log.value_version(self._version())
        for record in records:
            value = None if record.value is None else transaction_log.encode_value(record.value, version)  # type: ignore[arg-type]
            self.written.append((transaction_log.encode_key(record.key), value))  # type: ignore[arg-type]

    def read_all(self) -> Iterator[CoordinatorRecord]:
        for key, value in self.written:
            record = transaction_log.decode(key, value)
            assert record is not None
            yield record


class Shard:
    """Mutable: the time, the ids that were given, and the shard."""

    def __init__(self, configuration: TransactionConfiguration | None = None, *, transaction_version: int = 2) -> None:
        self.configuration = configuration or TransactionConfiguration()
        self.transaction_version = transaction_version
        self.now_ms = 1_000_000
        self.ids = iter(range(1000, 1_000_000))
        self.log = ListLog(lambda: self.transaction_version)
        self.rules, self._runner = self._started()

    def _started(self) -> tuple[TransactionCoordinatorShard, ShardRunner]:
        rules = TransactionCoordinatorShard(
            self.configuration,
            transaction_version=lambda: self.transaction_version,
            new_producer_id=lambda: next(self.ids),
        )
        runner = ShardRunner(rules, self.log)
        runner.load(now_ms=self.now_ms)
        return rules, runner

    def restart(self) -> None:
        self.rules, self._runner = self._started()

    def replayed(self) -> TransactionCoordinatorShard:
        """A second one, as a restart would make it."""
        return self._started()[0]

    def run(self, rule: Callable[[], CoordinatorResult]) -> Answer:
        answer = self._runner.run(rule, now_ms=self.now_ms).replies[0].response
        assert isinstance(answer, Answer)
        return answer

    def init(self, expected: ProducerIdentity | None = None, *, timeout_ms: int = 60_000, tid: str = TID) -> Answer:
        return self.run(
            lambda: self.rules.init_producer_id(tid, timeout_ms=timeout_ms, expected=expected, now_ms=self.now_ms)
        )

    def add(
        self, producer: ProducerIdentity, *parts: tuple[str, int], client_version: int = 2, tid: str = TID
    ) -> Answer:
        return self.run(
            lambda: self.rules.add_partitions(
                tid, producer, parts or PARTS, client_version=client_version, now_ms=self.now_ms
            )
        )

    def end(
        self, producer: ProducerIdentity, *, committed: bool = True, client_version: int = 2, tid: str = TID
    ) -> Answer:
        return self.run(
            lambda: self.rules.end_transaction(
                tid, producer, committed=committed, client_version=client_version, now_ms=self.now_ms
            )
        )

    def complete(self, tid: str = TID) -> None:
        self.run(lambda: self.rules.complete(tid, now_ms=self.now_ms))

    def sleep(self, duration_ms: int) -> None:
        """Time passes, and what is due happens."""
        self.now_ms += duration_ms
        for _ in self._runner.fire_timers(now_ms=self.now_ms):
            pass

    def value(self, tid: str = TID) -> TransactionLogValue:
        value = self.rules.transaction(tid)
        assert value is not None
        return value


def identity(answer: Answer) -> ProducerIdentity:
    return ProducerIdentity(producer_id=answer.producer_id, producer_epoch=answer.producer_epoch)
