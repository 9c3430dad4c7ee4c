"""Commands of `transcripts/transactions`: the transaction coordinator, one transactional id, producers by hand.

A producer is named by who it is; its identity is the one that its last InitProducerId or EndTxn was answered with.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.coordinator.transactions.transaction_shard import PARTS, TID, Shard, identity
from tests.harness.transcripts import Command

from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.transactions.transaction_log import decode
from headrace.coordinator.transactions.transitions import (
    Answer,
    ProducerIdentity,
    TransactionLogValue,
    TransactionState,
)
from headrace.protocol.error_codes import ErrorCode

__all__ = ["TransactionTranscript"]


class TransactionTranscript:
    """Mutable: the coordinator, and the identity of each producer."""

    def __init__(self) -> None:
        self._shard: Shard | None = None
        self._producers: dict[str, ProducerIdentity] = {}
        self._written = 0
        self.verbs: dict[str, Callable[[Command], list[str]]] = {
            "coordinator": self.coordinator,
            "init": self.init,
            "add": self.add,
            "commit": lambda command: self.end(command, committed=True),
            "abort": lambda command: self.end(command, committed=False),
            "markers": self.markers,
            "sleep": self.sleep,
            "restart": self.restart,
            "verify": self.verify,
        }

    @property
    def shard(self) -> Shard:
        assert self._shard is not None, "a transcript begins with `coordinator`"
        return self._shard

    def run(self, command: Command) -> list[str]:
        """Execute a command: the reply, then the records that were appended."""
        assert command.verb in self.verbs, f"unknown command: {command.verb}"
        lines = self.verbs[command.verb](command)
        written = self.shard.log.written
        lines += [f"append  {record_text(*each)}" for each in written[self._written :]]
        self._written = len(written)
        return lines

    def coordinator(self, command: Command) -> list[str]:
        version = int(command.options.get("transaction-version", 2))
        self._shard = Shard(TransactionConfiguration(), transaction_version=version)
        return []

    def init(self, command: Command) -> list[str]:
        known = self._producers.get(command.word(0)) if "keeps-id" in command.words else None
        answer = self.shard.init(known, timeout_ms=int(command.options.get("timeout", 60_000)))
        return self._answered(command, answer)

    def add(self, command: Command) -> list[str]:
        parts = [each.rpartition("-") for each in command.words[1:]]
        answer = self.shard.add(
            self._producers[command.word(0)],
            *((topic, int(number)) for topic, _, number in parts),
            client_version=int(command.options.get("client-version", 2)),
        )
        return [f"reply   {answer.code.name}"]

    def end(self, command: Command, *, committed: bool) -> list[str]:
        answer = self.shard.end(
            self._producers[command.word(0)],
            committed=committed,
            client_version=int(command.options.get("client-version", 2)),
        )
        return self._answered(command, answer)

    def markers(self, _command: Command) -> list[str]:
        self.shard.complete()
        return []

    def sleep(self, command: Command) -> list[str]:
        self.shard.sleep(int(command.word(0)))
        return []

    def restart(self, _command: Command) -> list[str]:
        self.shard.restart()
        return []

    def verify(self, command: Command) -> list[str]:
        parts = [each.rpartition("-") for each in command.words[1:]] or [(topic, "", str(n)) for topic, n in PARTS]
        code, missing = self.shard.rules.verify(
            TID, self._producers[command.word(0)], [(topic, int(number)) for topic, _, number in parts]
        )
        text = ", missing " + " ".join(f"{topic}-{number}" for topic, number in sorted(missing)) if missing else ""
        return [f"reply   {code.name}{text}"]

    def _answered(self, command: Command, answer: Answer) -> list[str]:
        if answer.code is not ErrorCode.none or answer.producer_id < 0:
            return [f"reply   {answer.code.name}"]
        if "lost" not in command.words:
            self._producers[command.word(0)] = identity(answer)
        lost = ", which is lost" if "lost" in command.words else ""
        return [f"reply   none, producer id {answer.producer_id}, epoch {answer.producer_epoch}{lost}"]


def record_text(key: bytes, value: bytes | None) -> str:
    record = decode(key, value)
    assert record is not None
    if record.value is None:
        return f"{TID}: tombstone"
    found = record.value
    assert isinstance(found, TransactionLogValue)
    parts = [TransactionState(found.transaction_status).name, f"producer id {found.producer_id}"]
    parts.append(f"epoch {found.producer_epoch}")
    parts += [f"previous id {found.previous_producer_id}"] if found.previous_producer_id >= 0 else []
    parts += [f"next id {found.next_producer_id}"] if found.next_producer_id >= 0 else []
    partitions = " ".join(f"{topic}-{number}" for topic, number in sorted(found.transaction_partitions))
    parts += [f"partitions {partitions}"] if partitions else []
    return f"{TID}: {', '.join(parts)}"
