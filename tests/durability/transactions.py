"""A transactional producer in a random history: one request at a time, and what became of each transaction.

Each transaction writes its number to both partitions of its topic, and some commit it as the offset of a group. It is
`committed` or `aborted` when that was acknowledged, or aborted by the next InitProducerId before its end was asked for;
what was asked and not answered is in doubt, and must then be whole or not there at all. A power loss that may take what
was acknowledged begins anew with another topic: logs may go back to different moments.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kio.static.primitive import i16
from tests.durability import requests as r

from headrace.protocol import messages as m
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import from_ms
from headrace.protocol.record_batches import PlainRecord, decode_records, encode_batch, iter_batch_headers

__all__ = ["PARTITIONS", "Transactions", "visible_records"]

PARTITIONS = 2
Ask = Callable[[ApiKey, Any, Callable[[Any], None]], None]


class Transactions:
    """Mutable. `step` sends the next request, if none is under way; `lost_track` when its connection is gone."""

    def __init__(self, chance: Random, life: int) -> None:
        self.topic = f"transactions-{life}"
        self._chance = chance
        self._id = self.topic
        self._producer: tuple[int, int] | None = None
        self._sequences = [0] * PARTITIONS
        self._number = 0
        self._written: list[int] = []
        self._ending: str | None = None
        self._busy = False
        self.outcomes: dict[int, str] = {}
        self.group = f"group-of-{self.topic}"
        self.offsets: dict[int, bool] = {}  # numbers that were to be committed as an offset: whether that was answered

    def step(self, ask: Ask, topic_id: Any, now_ms: int) -> None:
        if self._busy:
            return
        self._busy = True
        if self._producer is None:
            ask(ApiKey.INIT_PRODUCER_ID, self._init(), self._initialised)
        elif self._number not in self.offsets and self._chance.random() < 0.2:
            self.offsets[self._number] = False
            ask(ApiKey.TXN_OFFSET_COMMIT, self._offset_commit(), self._offset_committed)
        elif len(self._written) < PARTITIONS and (not self._written or self._chance.random() < 0.9):
            partition = len(self._written)
            request = self._produce(topic_id, partition, now_ms)
            ask(ApiKey.PRODUCE, request, lambda answer: self._produced(partition, answer))
        else:
            whole = len(self._written) == PARTITIONS and self.offsets.get(self._number, True)
            self._ending = "committed" if whole and self._chance.random() < 0.7 else "aborted"
            ask(ApiKey.END_TXN, self._end(), self._ended)

    def lost_track(self) -> None:
        """The broker is gone: what was under way is in doubt, and the producer is initialised anew."""
        self._busy = False
        self._give_up()

    def expected(self, number: int) -> str:
        """committed, aborted, open or doubtful."""
        return self.outcomes.get(number, "open")

    def _give_up(self) -> None:
        if self._producer is not None and self._number:
            self.outcomes.setdefault(self._number, "doubtful" if self._ending == "committed" else "open")
        self._producer = None

    def _init(self) -> Any:
        return m.init_producer_id_request.InitProducerIdRequest(
            transactional_id=self._id, transaction_timeout=from_ms(600_000)
        )

    def _initialised(self, answer: Any) -> None:
        self._busy = False
        if answer.error_code is ErrorCode.none:
            self._producer = int(answer.producer_id), int(answer.producer_epoch)
            self._sequences = [0] * PARTITIONS
            for number, outcome in self.outcomes.items():
                if outcome == "open":
                    self.outcomes[number] = "aborted"
            self._begin()

    def _begin(self) -> None:
        self._number += 1
        self._written, self._ending = [], None

    def _produce(self, topic_id: Any, partition: int, now_ms: int) -> Any:
        producer_id, epoch = self._producer or (-1, -1)
        how: dict[str, Any] = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "base_sequence": self._sequences[partition],
        }
        record = PlainRecord(value=b"%d" % self._number, timestamp_ms=now_ms)
        p = m.produce_request
        part = p.PartitionProduceData(index=partition, records=encode_batch([record], transactional=True, **how))
        data = p.TopicProduceData(name=self.topic, topic_id=topic_id, partition_data=(part,))
        return p.ProduceRequest(transactional_id=self._id, acks=-1, timeout=from_ms(10_000), topic_data=(data,))

    def _produced(self, partition: int, answer: Any) -> None:
        self._busy = False
        if answer.responses[0].partition_responses[0].error_code is ErrorCode.none:
            self._written.append(partition)
            self._sequences[partition] += 1
        else:
            self._give_up()

    def _offset_commit(self) -> Any:
        producer_id, epoch = self._producer or (-1, -1)
        return r.commit_in_transaction(self._id, producer_id, epoch, self.group, self.topic, 0, self._number)

    def _offset_committed(self, answer: Any) -> None:
        self._busy = False
        if answer.topics[0].partitions[0].error_code is ErrorCode.none:
            self.offsets[self._number] = True
        else:
            self._give_up()

    def allowed_offsets(self) -> set[int]:
        """What may be the group's offset: the last of a committed transaction, or any of those in doubt behind it."""
        outcomes = {number: self.expected(number) for number in self.offsets}
        least = max((number for number, outcome in outcomes.items() if outcome == "committed"), default=-1)
        return {least, *(number for number, each in outcomes.items() if each == "doubtful" and number > least)}

    def _end(self) -> Any:
        producer_id, epoch = self._producer or (-1, -1)
        return m.end_txn_request.EndTxnRequest(
            transactional_id=self._id,
            producer_id=producer_id,
            producer_epoch=i16(epoch),
            committed=self._ending == "committed",
        )

    def _ended(self, answer: Any) -> None:
        self._busy = False
        if answer.error_code is not ErrorCode.none or self._ending is None:
            self._give_up()
            return
        self.outcomes[self._number] = self._ending
        identity = int(answer.producer_id), int(answer.producer_epoch)
        if identity != self._producer and identity[0] >= 0:
            self._producer, self._sequences = identity, [0] * PARTITIONS
        self._begin()


def visible_records(data: bytes, offset: int, aborted: Any) -> list[Any]:
    """The records a consumer shows: none of control batches, none of aborted transactions."""
    starts = sorted((each.first_offset, each.producer_id) for each in aborted or ())
    hidden: set[int] = set()
    found: list[Any] = []
    for header in iter_batch_headers(data):
        while starts and starts[0][0] <= header.last_offset:
            hidden.add(starts.pop(0)[1])
        batch = data[header.position : header.position + header.size_bytes]
        if header.attributes & 0x20:
            hidden.discard(header.producer_id)
        elif not (header.attributes & 0x10 and header.producer_id in hidden):
            found += decode_records(batch, start_offset=offset)
    return found
