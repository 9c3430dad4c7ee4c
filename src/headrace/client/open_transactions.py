"""Open transactions of a partition: what holds back readers of committed records, and how it is ended.

DescribeProducers asks the partition's leader (KIP-664), ListTransactions asks every broker for the transactional id
that a producer id belongs to. Both are for messages only: nothing is decided by them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kio.schema.types import ProducerId, TopicName
from kio.static.primitive import i32

from headrace.client.connection import ConnectionLost
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = ["OpenTransaction", "find_open_transaction"]

_IN_PROGRESS: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """The oldest open transaction of a partition; without id and state where no coordinator has its producer id."""

    topic: str
    partition: int
    start_offset: int
    producer_id: int
    producer_epoch: int
    transactional_id: str | None = None
    state: str | None = None

    @property
    def hangs(self) -> bool:
        """Whether its coordinator will not end it: for the coordinator it is over, or was never known."""
        return self.state not in _IN_PROGRESS

    def describe(self) -> str:
        """One clause that names the transaction."""
        of = f" of {self.transactional_id}" if self.transactional_id is not None else ""
        known = f"its coordinator has it as {self.state}" if self.state is not None else "no coordinator has it"
        return (
            f"a transaction{of} is open there since offset {self.start_offset} "
            f"(producer id {self.producer_id}, epoch {self.producer_epoch}; {known})"
        )

    def how_to_end(self) -> str:
        """The fix, as an imperative."""
        if not self.hangs:
            return "Wait: the transaction ends with its producer's commit, at the latest after transaction.timeout.ms."
        return (
            "If the transactional id belongs to a Headrace application, start the instance that used it again with its "
            "state directory: it ends the transaction as it was decided. Otherwise end it: kafka-transactions.sh "
            f"--bootstrap-server HOST:PORT abort --topic {self.topic} --partition {self.partition} "
            f"--start-offset {self.start_offset}"
        )


def find_open_transaction(client: NetworkClient, topic: str, partition: int) -> OpenTransaction | None:
    """The oldest open transaction of a partition, None where there is none or brokers do not answer the question."""
    node = client.metadata([topic]).leader(topic, partition)
    request = m.describe_producers_request
    asked = request.DescribeProducersRequest(
        topics=(request.TopicRequest(name=TopicName(topic), partition_indexes=(i32(partition),)),)
    )
    (answer,) = [None] if node is None else client.attempt_all([(node, asked)])
    if answer is None or isinstance(answer, ConnectionLost):
        return None
    producers = [each for told in answer.topics for part in told.partitions for each in part.active_producers]
    holding = [each for each in producers if each.current_txn_start_offset >= 0]
    if not holding:
        return None
    oldest = min(holding, key=lambda each: int(each.current_txn_start_offset))
    transactional_id, state = _coordinated(client, int(oldest.producer_id)) or (None, None)
    return OpenTransaction(
        topic=topic,
        partition=partition,
        start_offset=int(oldest.current_txn_start_offset),
        producer_id=int(oldest.producer_id),
        producer_epoch=int(oldest.producer_epoch),
        transactional_id=transactional_id,
        state=state,
    )


def _coordinated(client: NetworkClient, producer_id: int) -> tuple[str, str] | None:
    """The transactional id that has the producer id now, and its state."""
    request = m.list_transactions_request.ListTransactionsRequest(
        state_filters=(), producer_id_filters=(ProducerId(producer_id),)
    )
    nodes = sorted(client.metadata(()).brokers)
    for answer in client.attempt_all([(node, request) for node in nodes]):
        if isinstance(answer, ConnectionLost) or answer.error_code != ErrorCode.none:
            continue
        for found in answer.transaction_states:
            return str(found.transactional_id), found.transaction_state
    return None
