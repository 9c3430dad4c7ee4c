"""What confluent-kafka's transactional producer meets when one request or one answer is lost, told in plain words.

Each case is a producer of its own: a transaction that goes well, one in the midst of which a request of one API (or its
answer) is lost with all connections, and one more. An error is followed as the client asks for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.interop.cut_connections import CuttingProxy, Loss

__all__ = ["ADD", "END", "INIT", "PARTITIONS", "PRODUCE", "Case", "told"]

PATIENCE_SECONDS = 60
PARTITIONS = 2
PRODUCE, INIT, ADD, END = 0, 22, 24, 26


class Case(NamedTuple):
    """`flushes`: whether the records are acknowledged before the end is asked for; else right after the loss."""

    api_key: int
    loss: Loss
    commits: bool
    flushes: bool = True


class _Story:
    """Mutable: what happened so far."""

    def __init__(self, case: Case, number: int, topic: str, proxy: CuttingProxy) -> None:
        import confluent_kafka

        self._error = confluent_kafka.KafkaException
        self._case, self._number, self._topic, self._proxy = case, number, topic, proxy
        self.told: list[str] = []
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": f"127.0.0.1:{proxy.port}",
                "transactional.id": f"losses-{topic}-{number}",
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "retry.backoff.ms": 20,
                "message.timeout.ms": 50_000,
                "log_level": 0,
            }
        )

    def step(self, name: str, action: Callable[..., Any], *arguments: Any) -> bool:
        try:
            action(*arguments)
        except self._error as error:
            why = error.args[0]
            kinds = {"fatal": why.fatal(), "retriable": why.retriable(), "abort": why.txn_requires_abort()}
            self.told.append(f"{name}: {why.name()} {' '.join(kind for kind, holds in kinds.items() if holds)}")
            if why.txn_requires_abort():
                self.step("abort", self.producer.abort_transaction, PATIENCE_SECONDS)
            return False
        self.told.append(f"{name}: done")
        return True

    def transaction(self, name: str, *, commits: bool, flushes: bool, loses: bool = False) -> None:
        case, producer, proxy = self._case, self.producer, self._proxy
        if not self.step(f"{name} begins", producer.begin_transaction):
            return
        if loses and case.api_key != END:
            proxy.lose_next(case.api_key, case.loss)
        for partition in range(PARTITIONS):
            producer.produce(self._topic, f"{self._number} {name}".encode(), partition=partition)
        if flushes:
            self.told.append(f"{name} left {producer.flush(PATIENCE_SECONDS)}")
        elif loses:
            proxy.lost.wait(PATIENCE_SECONDS)
        if loses and case.api_key == END:
            proxy.lose_next(END, case.loss)
        self.step(name, producer.commit_transaction if commits else producer.abort_transaction, PATIENCE_SECONDS)


def told(case: Case, number: int, topic: str, proxy: CuttingProxy) -> list[str]:
    """Each step and what became of it."""
    story = _Story(case, number, topic, proxy)
    if case.api_key == INIT:
        proxy.lose_next(INIT, case.loss)
    while not story.step("init", story.producer.init_transactions, PATIENCE_SECONDS):
        pass
    story.transaction("first", commits=True, flushes=True)
    story.transaction("second", commits=case.commits, flushes=case.flushes, loses=case.api_key != INIT)
    story.transaction("third", commits=True, flushes=True)
    return story.told
