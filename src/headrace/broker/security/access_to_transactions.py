"""Checks of the APIs of producers and transactions."""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.broker.security.acls import Operation, ResourceType
from headrace.broker.security.partial_response import Checked, then
from headrace.protocol import messages as m
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "add_offsets_to_txn",
    "add_partitions_to_txn",
    "describe_transactions",
    "end_txn",
    "init_producer_id",
    "list_transactions",
    "txn_offset_commit",
]

_ID_FAILED = ErrorCode.transactional_id_authorization_failed
_GROUP_FAILED = ErrorCode.group_authorization_failed
_TOPIC_FAILED = ErrorCode.topic_authorization_failed
_FIRST_OF_BROKERS = 4


def _may_write(checked: Checked, transactional_id: str) -> bool:
    return checked.allow.on_transactional_id(checked.call, Operation.WRITE, transactional_id)


def init_producer_id(checked: Checked) -> Any:
    """WRITE of the transactional id; without one IDEMPOTENT_WRITE of the cluster, or WRITE of any topic (KIP-679)."""
    allow, call, transactional_id = checked.allow, checked.call, checked.request.transactional_id
    if transactional_id is not None:
        return checked.handled() if _may_write(checked, transactional_id) else checked.refused(_ID_FAILED)
    if allow.on_cluster(call, Operation.IDEMPOTENT_WRITE) or allow.allowed_on_any(
        call, Operation.WRITE, ResourceType.TOPIC
    ):
        return checked.handled()
    return checked.refused(ErrorCode.cluster_authorization_failed)


def add_partitions_to_txn(checked: Checked) -> Any:
    """From producers: WRITE of the id and of each topic; one topic refused keeps the others from being added. From
    brokers (v4): CLUSTER_ACTION."""
    allow, call = checked.allow, checked.call
    if call.api_version >= _FIRST_OF_BROKERS:
        if allow.on_cluster(call, Operation.CLUSTER_ACTION):
            return checked.handled()
        refusal = checked.refused(ErrorCode.cluster_authorization_failed)
        return dataclasses.replace(refusal, results_by_transaction=())
    for transaction in checked.request.transactions:
        if not _may_write(checked, transaction.transactional_id):
            return _no_partitions(checked, lambda _name: _ID_FAILED)
        allowed = {topic.name: allow.on_topic(call, Operation.WRITE, topic.name) for topic in transaction.topics}
        if not all(allowed.values()):
            return _no_partitions(
                checked,
                lambda name, allowed=allowed: ErrorCode.operation_not_attempted if allowed[name] else _TOPIC_FAILED,
            )
    return checked.handled()


def _no_partitions(checked: Checked, code: Any) -> Any:
    r = m.add_partitions_to_txn_response
    refusal = checked.refused(_TOPIC_FAILED)
    return dataclasses.replace(
        refusal,
        error_code=ErrorCode.none,
        results_by_transaction=tuple(
            r.AddPartitionsToTxnResult(
                transactional_id=transaction.transactional_id,
                topic_results=tuple(
                    r.AddPartitionsToTxnTopicResult(
                        name=topic.name,
                        results_by_partition=tuple(
                            r.AddPartitionsToTxnPartitionResult(
                                partition_index=partition, partition_error_code=code(topic.name)
                            )
                            for partition in topic.partitions
                        ),
                    )
                    for topic in transaction.topics
                ),
            )
            for transaction in checked.request.transactions
        ),
    )


def add_offsets_to_txn(checked: Checked) -> Any:
    """WRITE of the id, READ of the group."""
    if not _may_write(checked, checked.request.transactional_id):
        return checked.refused(_ID_FAILED)
    if not checked.allow.on_group(checked.call, Operation.READ, checked.request.group_id):
        return checked.refused(_GROUP_FAILED)
    return checked.handled()


def end_txn(checked: Checked) -> Any:
    """Check WRITE of the transactional id."""
    return checked.handled() if _may_write(checked, checked.request.transactional_id) else checked.refused(_ID_FAILED)


def txn_offset_commit(checked: Checked) -> Any:
    """WRITE of the id, READ of the group and of each topic."""
    request, allow, call = checked.request, checked.allow, checked.call
    if not _may_write(checked, request.transactional_id):
        return checked.refused(_ID_FAILED)
    if not allow.on_group(call, Operation.READ, request.group_id):
        return checked.refused(_GROUP_FAILED)
    return checked.split(
        "topics", "topics", lambda item: allow.on_topic(call, Operation.READ, item.name), _TOPIC_FAILED
    )


def describe_transactions(checked: Checked) -> Any:
    """DESCRIBE of the id; topics that may not be seen are left out."""
    from headrace.broker.handlers.describe_transactions import refused_state

    allow, call = checked.allow, checked.call

    def refused(transactional_id: str) -> Any:
        return refused_state(transactional_id, _ID_FAILED)

    def shown(state: Any) -> Any:
        topics = tuple(each for each in state.topics if allow.on_topic(call, Operation.DESCRIBE, each.topic))
        return dataclasses.replace(state, topics=topics)

    return then(
        checked.split(
            "transactional_ids",
            "transaction_states",
            lambda each: allow.on_transactional_id(call, Operation.DESCRIBE, each),
            _ID_FAILED,
            refused,
        ),
        lambda answer: dataclasses.replace(answer, transaction_states=tuple(map(shown, answer.transaction_states))),
    )


def list_transactions(checked: Checked) -> Any:
    """Those with DESCRIBE of their id."""
    allow, call = checked.allow, checked.call
    return then(
        checked.handled(),
        lambda answer: dataclasses.replace(
            answer,
            transaction_states=tuple(
                each
                for each in answer.transaction_states
                if allow.on_transactional_id(call, Operation.DESCRIBE, each.transactional_id)
            ),
        ),
    )
