"""The rules of transactions: what interop cannot reach in a second (exhausted epochs, expiry) or cannot hold still
(markers under way).
"""

from __future__ import annotations

import pytest
from tests.coordinator.transactions.transaction_shard import PARTS, TID, Shard, identity

from headrace.coordinator.configuration import TransactionConfiguration
from headrace.coordinator.transactions.transaction_log import encode_key, encode_value
from headrace.coordinator.transactions.transitions import (
    MAX_EPOCH,
    VALID_PREVIOUS_STATES,
    ProducerIdentity,
    TransactionLogKey,
    TransactionLogValue,
    TransactionState,
    completed,
    created,
    state_of,
)
from headrace.protocol.error_codes import ErrorCode

LAST = MAX_EPOCH - 1


def at_epoch(shard: Shard, epoch: int) -> ProducerIdentity:
    """An identity at a late epoch, by a record as it would lie in the log."""
    shard.init()
    value = TransactionLogValue(
        producer_id=shard.value().producer_id,
        producer_epoch=epoch,
        transaction_timeout_ms=60_000,
        transaction_status=TransactionState.EMPTY,
        transaction_last_update_timestamp_ms=shard.now_ms,
    )
    shard.log.written.append((encode_key(TransactionLogKey(transactional_id=TID)), encode_value(value, 1)))
    shard.restart()
    return ProducerIdentity(producer_id=value.producer_id, producer_epoch=epoch)


def test_while_markers_are_under_way_everybody_waits() -> None:
    shard = Shard()
    p = identity(shard.init())
    shard.add(p)
    answer = shard.end(p)
    assert (answer.code, answer.producer_epoch) == (ErrorCode.none, p.producer_epoch + 1)
    assert shard.rules.prepared() == (TID,)
    busy = ErrorCode.concurrent_transactions
    new = identity(answer)
    assert shard.end(p).code is busy
    assert shard.add(new).code is busy
    assert shard.init(new).code is busy
    assert shard.init().code is busy
    assert shard.rules.verify(TID, new, PARTS)[0] is busy
    assert shard.end(p, committed=False).code is ErrorCode.invalid_txn_state
    assert shard.end(new).code is ErrorCode.producer_fenced
    assert shard.value().transaction_partitions == frozenset(PARTS)
    shard.complete()
    assert shard.rules.prepared() == ()
    assert shard.end(p) == answer
    assert shard.add(new).code is ErrorCode.none


def test_commit_at_the_last_epoch_rotates_the_producer_id_idempotently() -> None:
    shard = Shard()
    p = at_epoch(shard, LAST)
    shard.add(p)
    answer = shard.end(p)
    assert (answer.code, answer.producer_epoch) == (ErrorCode.none, 0)
    assert answer.producer_id != p.producer_id
    prepared = shard.value()
    assert (prepared.producer_id, prepared.producer_epoch) == (p.producer_id, MAX_EPOCH)  # what markers carry
    assert shard.end(p).code is ErrorCode.concurrent_transactions
    shard.restart()  # the new id stands in the log
    shard.complete()
    assert (shard.value().producer_id, shard.value().producer_epoch) == (answer.producer_id, 0)
    assert shard.end(p) == answer
    shard.restart()
    assert shard.end(p) == answer
    assert shard.end(p, committed=False).code is ErrorCode.invalid_txn_state
    assert shard.add(identity(answer)).code is ErrorCode.none


def test_a_fence_at_the_last_epoch_leads_to_a_new_producer_id() -> None:
    shard = Shard()
    p = at_epoch(shard, LAST)
    shard.add(p)
    assert shard.init().code is ErrorCode.concurrent_transactions
    assert shard.value().producer_epoch == MAX_EPOCH
    shard.complete()
    fresh = shard.init()
    assert (fresh.code, fresh.producer_epoch) == (ErrorCode.none, 0)
    assert fresh.producer_id != p.producer_id
    assert shard.add(p).code is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("passes_identity", [True, False])
def test_init_producer_id_with_the_last_epoch_rotates(passes_identity: bool) -> None:
    shard = Shard()
    p = at_epoch(shard, LAST)
    fresh = shard.init(p if passes_identity else None)
    assert (fresh.code, fresh.producer_epoch) == (ErrorCode.none, 0)
    retried = shard.init(p)
    if passes_identity:
        assert retried == fresh
    else:
        assert retried.code is ErrorCode.producer_fenced


def test_a_retry_of_a_bump_is_told_from_a_fenced_producer() -> None:
    shard = Shard()
    first = identity(shard.init())
    second = shard.init(first)
    assert shard.init(first) == second
    shard.init()
    assert shard.init(identity(second)).code is ErrorCode.producer_fenced


def test_a_failed_append_does_not_make_a_fenced_producer_look_like_a_retry() -> None:
    shard = Shard()
    first = identity(shard.init())
    kept = list(shard.log.written)
    shard.rules.init_producer_id(TID, timeout_ms=1, expected=first, now_ms=shard.now_ms)  # never appended
    assert shard.log.written == kept
    assert shard.init(first).producer_epoch == first.producer_epoch + 1


def test_an_open_transaction_ends_at_its_time_also_across_a_restart() -> None:
    shard = Shard()
    p = identity(shard.init(timeout_ms=5_000))
    shard.add(p)
    shard.sleep(3_000)
    shard.add(p, ("c", 0))  # does not begin its time again
    shard.restart()
    shard.sleep(2_000)
    assert state_of(shard.value()) is TransactionState.ONGOING
    shard.sleep(1)
    assert state_of(shard.value()) is TransactionState.PREPARE_ABORT
    assert shard.value().producer_epoch == p.producer_epoch + 1
    shard.complete()
    assert shard.end(p).code is ErrorCode.invalid_txn_state
    told = shard.end(p, committed=False)
    assert (told.code, told.producer_epoch) == (ErrorCode.none, p.producer_epoch + 1)


def test_unused_ids_expire_with_a_tombstone_and_open_ones_do_not() -> None:
    shard = Shard(TransactionConfiguration(id_expiration_ms=10_000, expiry_interval_ms=1_000, max_timeout_ms=10**9))
    shard.init(tid="idle")
    p = identity(shard.init(tid="open", timeout_ms=10**9))
    shard.add(p, tid="open")
    shard.sleep(9_999)
    assert shard.rules.transaction("idle") is not None
    shard.sleep(1_000)
    assert shard.rules.transaction("idle") is None
    assert shard.log.written[-1] == (encode_key(TransactionLogKey(transactional_id="idle")), None)
    assert shard.replayed().transaction("idle") is None
    assert shard.rules.transaction("open") is not None
    assert shard.init(tid="idle").producer_epoch == 0


def test_a_transaction_with_a_version_2_client_at_level_0_changes_nothing() -> None:
    shard = Shard(transaction_version=0)
    p = identity(shard.init())
    assert shard.add(p).code is ErrorCode.unsupported_version
    assert shard.end(p, committed=False).code is ErrorCode.unsupported_version
    assert shard.add(p, client_version=0).code is ErrorCode.none
    assert shard.end(p, client_version=0).code is ErrorCode.none
    assert shard.replayed().transaction(TID) == shard.value()


def test_every_state_has_its_row_and_no_step_leaves_the_table() -> None:
    assert set(VALID_PREVIOUS_STATES) == set(TransactionState)
    with pytest.raises(RuntimeError, match="EMPTY to COMPLETE"):
        completed(created(1, timeout_ms=1, now_ms=1), now_ms=1)
