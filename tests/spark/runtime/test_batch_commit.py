"""Which refusals of a transaction end an application, and which are worth another transaction."""

import pytest

from headrace.client.transaction_rules import refused
from headrace.errors import BrokerError
from headrace.protocol.error_codes import ErrorCode
from headrace.spark.runtime.batch_commit import _trouble


@pytest.mark.parametrize(
    ("api", "code", "is_borne"),
    [
        ("EndTxn", ErrorCode.unknown_server_error, True),  # seen on Apache Kafka 4.3.1 beside an overdue abort
        ("EndTxn", ErrorCode.invalid_txn_state, True),  # the overdue transaction was aborted
        ("TxnOffsetCommit", ErrorCode.invalid_txn_state, False),
        ("EndTxn", ErrorCode.transaction_abortable, True),
        ("EndTxn", ErrorCode.transactional_id_authorization_failed, False),
        ("TxnOffsetCommit", ErrorCode.topic_authorization_failed, False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_retriable_commit_errors_start_another_transaction(api, code, is_borne) -> None:
    error = refused(code, "to commit the transaction of app-1", api=api, transactional_id="app-1")
    assert _trouble([error]) is error
    assert isinstance(error, BrokerError)
    assert bool(error.retriable) is is_borne
