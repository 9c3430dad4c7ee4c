"""Which refusals of a transaction end an application, and which are worth another transaction."""

import pytest

from penstock.client.transaction_rules import refused
from penstock.protocol.error_codes import ErrorCode
from penstock.spark.runtime.batch_commit import _trouble


@pytest.mark.parametrize(
    ("code", "is_borne"),
    [
        (ErrorCode.unknown_server_error, True),  # seen on Apache Kafka 4.3.1: EndTxn beside an overdue abort
        (ErrorCode.transaction_abortable, True),
        (ErrorCode.transactional_id_authorization_failed, False),
        (ErrorCode.topic_authorization_failed, False),
        (ErrorCode.invalid_txn_state, False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_what_is_worth_another_transaction(code, is_borne) -> None:
    error = refused(code, "to commit the transaction of app-1", api="EndTxn", transactional_id="app-1")
    assert _trouble([error]) is error
    assert bool(error.retriable) is is_borne
