"""Transactions in progress, as their coordinators know them (KIP-664)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from headrace.client.broker_errors import raise_for
from headrace.client.connection import ConnectionLost
from headrace.client.network_client import NetworkClient
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.kio_units import timestamp_to_ms, to_ms

__all__ = ["IN_PROGRESS", "TransactionDescription", "list_open_transactions"]

TopicPartition = tuple[str, int]
IN_PROGRESS: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
"""States in which a transaction has partitions whose readers wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionDescription:
    """One transaction; `begun_ms` is None if its coordinator reports none."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    begun_ms: int | None
    partitions: tuple[TopicPartition, ...]


def list_open_transactions(client: NetworkClient, *, at_most: int = 1_000) -> tuple[TransactionDescription, ...]:
    """Return the transactions in progress of all coordinators, the oldest first.

    ListTransactions goes to every broker, and DescribeTransactions of the ids that a broker listed to the same broker.
    A coordinator that does not answer or has moved is left out.

    Args:
        client: A client of the cluster.
        at_most: The most transactions that are described per broker.

    Raises:
        BrokerError: `unsupported-api` before Kafka 3.0; `not-authorized`.
    """
    request = m.list_transactions_request.ListTransactionsRequest(state_filters=IN_PROGRESS, producer_id_filters=())
    nodes = sorted(client.metadata((), refresh=True).brokers)
    listed = dict(zip(nodes, client.attempt_all([(node, request) for node in nodes]), strict=True))
    described: list[TransactionDescription] = []
    asked = []
    for node, answer in listed.items():
        if isinstance(answer, ConnectionLost) or answer.error_code == ErrorCode.coordinator_load_in_progress:
            continue
        raise_for(answer.error_code, "to list transactions", api="ListTransactions")
        ids = tuple(each.transactional_id for each in answer.transaction_states)[:at_most]
        if ids:
            asked.append((node, m.describe_transactions_request.DescribeTransactionsRequest(transactional_ids=ids)))
    for answer in client.attempt_all(asked):
        if not isinstance(answer, ConnectionLost):
            described += _described(answer.transaction_states)
    return tuple(sorted(described, key=lambda each: (each.begun_ms or 0, each.transactional_id)))


def _described(
    states: Iterable[m.describe_transactions_response.TransactionState],
) -> Iterable[TransactionDescription]:
    for state in states:
        # An id that ended since it was listed is in another state, and one whose coordinator moved has an error.
        if state.error_code != ErrorCode.none or state.transaction_state not in IN_PROGRESS:
            continue
        begun = state.transaction_start_time
        yield TransactionDescription(
            transactional_id=str(state.transactional_id),
            state=state.transaction_state,
            producer_id=int(state.producer_id),
            producer_epoch=int(state.producer_epoch),
            timeout_ms=to_ms(state.transaction_timeout),
            begun_ms=None if begun is None else timestamp_to_ms(begun),
            partitions=tuple(
                sorted((str(topic.topic), int(number)) for topic in state.topics for number in topic.partitions)
            ),
        )
