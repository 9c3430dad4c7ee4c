"""The shard of transactional ids: filters, verification, refusals of strangers, damaged records."""

from __future__ import annotations

import pytest
from tests.coordinator.transactions.transaction_shard import PARTS, TID, Shard, identity

from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord
from headrace.coordinator.transactions.shard import TransactionFilter, unknown_states
from headrace.coordinator.transactions.transitions import (
    ProducerIdentity,
    TransactionLogKey,
    TransactionLogValue,
)
from headrace.protocol.error_codes import ErrorCode

STRANGER = ProducerIdentity(producer_id=77, producer_epoch=0)


def two_transactions() -> tuple[Shard, ProducerIdentity]:
    """`orders` has an open transaction since 5 s, `idle` has an identity only."""
    shard = Shard()
    producer = identity(shard.init())
    shard.init(tid="idle")
    shard.add(producer)
    shard.now_ms += 5_000
    return shard, producer


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (TransactionFilter(), {TID, "idle"}),
        (TransactionFilter(states=("Ongoing",)), {TID}),
        (TransactionFilter(states=("Empty", "CompleteAbort")), {"idle"}),
        (TransactionFilter(states=("NoSuchState",)), set()),
        (TransactionFilter(producer_ids=(1000,)), {TID}),
        (TransactionFilter(longer_than_ms=5_000), {"idle"}),
        (TransactionFilter(longer_than_ms=4_999), {TID, "idle"}),
        (TransactionFilter(matches=lambda name: name.startswith("o")), {TID}),
    ],
)
def test_transactions_are_listed_by_filter(wanted: TransactionFilter, found: set[str]) -> None:
    shard, _ = two_transactions()
    assert {name for name, _ in shard.rules.list_transactions(wanted, now_ms=shard.now_ms)} == found
    assert shard.rules.transactional_id_count == 2


def test_unknown_names_of_states_are_reported_in_order() -> None:
    assert unknown_states(("Ongoing", "Nonsense", "Empty", "Else")) == ("Nonsense", "Else")


def test_verification_reports_the_missing_partitions() -> None:
    shard, producer = two_transactions()
    assert shard.rules.verify(TID, producer, PARTS) == (ErrorCode.none, frozenset())
    assert shard.rules.verify(TID, producer, (*PARTS, ("c", 1))) == (
        ErrorCode.transaction_abortable,
        frozenset({("c", 1)}),
    )
    refused = shard.rules.verify("no such id", producer, PARTS)
    assert refused == (ErrorCode.invalid_producer_id_mapping, frozenset())


@pytest.mark.parametrize("client_version", [0, 2])
def test_strangers_and_fenced_producers_change_nothing(client_version: int) -> None:
    shard, producer = two_transactions()
    fenced = ProducerIdentity(producer_id=producer.producer_id, producer_epoch=producer.producer_epoch + 9)
    before = list(shard.log.written)
    for sender, code in ((STRANGER, ErrorCode.invalid_producer_id_mapping), (fenced, ErrorCode.producer_fenced)):
        assert shard.add(sender, client_version=client_version).code is code
        assert shard.end(sender, client_version=client_version).code is code
    assert shard.end(producer, tid="no such id", client_version=client_version).code is (
        ErrorCode.invalid_producer_id_mapping
    )
    assert shard.add(producer, tid="no such id").code is ErrorCode.invalid_producer_id_mapping
    assert shard.log.written == before


@pytest.mark.parametrize("client_version", [0, 2])
def test_while_the_end_is_written_other_requests_wait(client_version: int) -> None:
    shard, producer = two_transactions()
    assert shard.end(producer, client_version=client_version).code is ErrorCode.none
    now = ProducerIdentity(producer_id=producer.producer_id, producer_epoch=shard.value().producer_epoch)
    assert shard.add(now).code is ErrorCode.concurrent_transactions
    assert shard.end(producer, client_version=client_version).code is ErrorCode.concurrent_transactions
    assert shard.end(producer, client_version=client_version, committed=False).code is ErrorCode.invalid_txn_state
    shard.complete()
    assert shard.end(producer, client_version=client_version).code is ErrorCode.none


def test_adding_known_partitions_again_writes_nothing() -> None:
    shard, producer = two_transactions()
    before = len(shard.log.written)
    assert shard.add(producer).code is ErrorCode.none
    assert len(shard.log.written) == before


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_outside_the_bounds_is_refused(timeout_ms: int) -> None:
    assert Shard().init(timeout_ms=timeout_ms).code is ErrorCode.invalid_transaction_timeout


def test_end_without_transaction_is_refused_except_abort_at_version_2() -> None:
    shard = Shard()
    producer = identity(shard.init())
    assert shard.end(producer).code is ErrorCode.invalid_txn_state
    assert shard.end(producer, client_version=0).code is ErrorCode.invalid_txn_state
    assert shard.end(producer, committed=False).code is ErrorCode.none


def test_damaged_records_are_corrupt() -> None:
    shard, _ = two_transactions()
    value = TransactionLogValue(
        producer_id=1,
        producer_epoch=0,
        transaction_timeout_ms=1,
        transaction_status=9,
        transaction_last_update_timestamp_ms=0,
    )
    with pytest.raises(CorruptRecord, match="is not a key"):
        shard.rules.replay(CoordinatorRecord(key="nonsense", value=None))
    with pytest.raises(CorruptRecord, match="impossible value"):
        shard.rules.replay(CoordinatorRecord(key=TransactionLogKey(transactional_id=TID), value=value))


def test_images_and_settings_change_nothing() -> None:
    shard, _ = two_transactions()
    assert list(shard.rules.on_metadata_image(object(), now_ms=0)) == []
    assert list(shard.rules.on_configuration(object(), now_ms=0)) == []
    assert shard.rules.next_deadline_ms() is not None
    assert dict(shard.rules.transactions())[TID] == shard.value()
