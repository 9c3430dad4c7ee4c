"""Records of `__transaction_state`."""

from __future__ import annotations

import pytest
from tests.coordinator.transactions.transaction_shard import TID

from headrace.coordinator.transactions.transaction_log import decode, encode_key, encode_value
from headrace.coordinator.transactions.transitions import (
    MAX_EPOCH,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
)


@pytest.mark.parametrize("version", [0, 1])
def test_values_come_back_from_their_bytes(version: int) -> None:
    value = TransactionLogValue(
        producer_id=2**40,
        previous_producer_id=5 if version else -1,
        next_producer_id=7 if version else -1,
        producer_epoch=MAX_EPOCH,
        transaction_timeout_ms=1,
        transaction_status=TransactionState.PREPARE_COMMIT,
        transaction_partitions=frozenset({("b", 2), ("a", 1), ("b", 0)}),
        transaction_last_update_timestamp_ms=2,
        transaction_start_timestamp_ms=1,
        client_transaction_version=2 if version else 0,
    )
    key = encode_key(TransactionLogKey(transactional_id=TID))
    record = decode(key, encode_value(value, version))
    assert record is not None
    assert record.value == value
