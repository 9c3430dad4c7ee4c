"""Acceptance rules for producer batches, case by case: KIP-98, KIP-360, KIP-890 and KIP-1228."""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.storage.log_samples import NOW_MS, batch, produced
from tests.storage.producer_samples import PRODUCER, check, marker, note, state_of, values

from headrace.errors import HeadraceError
from headrace.protocol.record_batches import iter_batch_headers
from headrace.storage.errors import (
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from headrace.storage.producer_state import (
    LARGEST_SEQUENCE,
    DescribedProducer,
    ProducerState,
    WrittenBatch,
)

FACTS = {"topic": "flights", "partition": 3, "producer_id": PRODUCER}
WHERE = "of producer 7 in partition flights-3"


def check_marker(state: ProducerState, data: bytes, version: int) -> None:
    state.check_coordinators(data, iter_batch_headers(data), version)


def refused(kind: type[HeadraceError], code: str, message: str, action: Any, *given: Any, **named: Any) -> None:
    """The call is refused with this code, a message of these words, and a fix, both in sentences, and names where."""
    with pytest.raises(kind) as caught:
        action(*given, **named)
    error = caught.value
    assert error.code == code
    assert message in error.message
    for text in (error.message, error.fix):
        assert text[0].isupper()
        assert text[-1] == "."
        assert not re.search("[A-Z]{4}", text), "shouts"
    assert {name: error.facts.get(name) for name in FACTS} == FACTS


# The last batch has the sequences 10 to 12, at epoch 2.
@pytest.mark.parametrize(
    ("epoch", "sequence", "count", "expected"),
    [
        (2, 13, 1, None),
        (2, 12, 1, 13),
        (2, 14, 1, 13),
        (2, 0, 1, 13),
        (2, 10, 1, 13),  # the first sequence of a batch that was longer
        (2, 10, 4, 13),  # and of one that was shorter
        (2, 11, 2, 13),  # only the last sequence is the same
        (3, 0, 1, None),
        (3, 13, 1, 0),
        (3, 10, 3, 0),  # the sequences of a remembered batch, with another epoch: not a repeat
        (4, 1, 1, 0),
    ],
)
def test_a_batch_follows_the_last_one_of_its_producer(
    epoch: int, sequence: int, count: int, expected: int | None
) -> None:
    state = state_of(produced(10, *values(3), epoch=2))
    data = produced(sequence, *values(count), epoch=epoch)
    if expected is None:
        assert check(state, data) is None
    else:
        words = f"{WHERE}: {sequence} (incoming), {expected} (expected, epoch 2)"
        refused(OutOfOrderSequence, "sequence-out-of-order", words, check, state, data)


def test_an_older_epoch_is_refused_whatever_its_sequence() -> None:
    state = state_of(produced(0, *values(3), epoch=2))
    for sequence in (0, 3):
        words = f"Epoch 1 {WHERE} is too old: the last seen epoch is 2"
        refused(InvalidProducerEpoch, "producer-epoch-old", words, check, state, produced(sequence, "v", epoch=1))


def test_sequences_wrap_to_zero() -> None:
    state = state_of(produced(LARGEST_SEQUENCE - 1, *values(2)))
    assert check(state, produced(0, "v")) is None
    with pytest.raises(OutOfOrderSequence):
        check(state, produced(1, "v"))
    before = state_of(produced(LARGEST_SEQUENCE - 2, *values(2)))
    assert check(before, produced(LARGEST_SEQUENCE, "v")) is None
    with pytest.raises(OutOfOrderSequence):
        check(before, produced(0, "v"))


def test_a_repeat_of_one_of_the_last_five_batches_is_that_batch() -> None:
    batches = [produced(3 * n, *values(3), base_offset=100 + 10 * n) for n in range(7)]
    state = state_of(*batches)
    for n in range(2, 7):
        assert check(state, batches[n]) == WrittenBatch(3 * n, 3 * n + 2, 100 + 10 * n, 102 + 10 * n, NOW_MS)
    for n in range(2):
        with pytest.raises(OutOfOrderSequence):
            check(state, batches[n])
    note(state, produced(0, "v", epoch=1))
    with pytest.raises(OutOfOrderSequence):
        check(state, produced(18, *values(3), epoch=1))  # what was remembered went with its epoch


def test_batches_of_one_append_follow_each_other() -> None:
    state = state_of(produced(0, *values(3)))
    assert check(state, produced(3, *values(2)), produced(5, "v")) is None
    refused(
        OutOfOrderSequence,
        "sequence-out-of-order",
        "6 (incoming), 5 (expected",
        check,
        state,
        produced(3, *values(2)),
        produced(6, "v"),
    )
    assert check(state, produced(3, "v"), produced(0, "v", epoch=1)) is None, "the epoch may rise within"
    with pytest.raises(InvalidProducerEpoch):
        check(state, produced(0, "v", epoch=1), produced(4, "v"))
    fresh = state_of()
    assert check(fresh, produced(40, "v"), produced(41, "v")) is None
    with pytest.raises(OutOfOrderSequence):
        check(fresh, produced(40, "v"), produced(42, "v"))
    assert check(state, batch("plain"), produced(3, "v")) is None
    with pytest.raises(OutOfOrderSequence):
        check(state, batch("plain"), produced(4, "v"))
    assert check(state, produced(3, "v"), produced(77, "v", producer_id=8)) is None
    with pytest.raises(OutOfOrderSequence):
        check(state, produced(77, "v", producer_id=8), produced(4, "v"))


def test_a_producer_whose_id_is_zero_is_checked_too() -> None:
    state = state_of(produced(0, "v", producer_id=0))
    assert len(state) == 1
    with pytest.raises(OutOfOrderSequence):
        check(state, produced(5, "v", producer_id=0))


@pytest.mark.parametrize(
    ("transactional", "version", "sequence", "taken"),
    [
        (True, 2, 0, True),
        (True, 2, 1, False),
        (True, 2, 5, False),
        (True, 3, 5, False),
        (True, 1, 5, True),
        (True, 0, 5, True),
        (False, 2, 5, True),
    ],
)
def test_an_unknown_producer_begins_anywhere_but_at_version_2_at_zero(
    transactional: bool, version: int, sequence: int, taken: bool
) -> None:
    data = produced(sequence, "v", transactional=transactional, epoch=4)
    if taken:
        assert check(state_of(), data, version=version) is None
    else:
        words = f"{sequence} (incoming), 0 (expected, epoch 4)"
        refused(OutOfOrderSequence, "sequence-out-of-order", words, check, state_of(), data, version=version)


def test_a_plain_batch_inside_of_a_transaction_is_refused() -> None:
    state = state_of(produced(0, "v", transactional=True))
    words = f"A batch {WHERE} is not transactional"
    refused(InvalidTransactionState, "record-invalid", words, check, state, produced(1, "v"))
    assert check(state, produced(1, "v", transactional=True)) is None
    note(state, marker(0))
    assert check(state, produced(1, "v")) is None
    at_zero = state_of(produced(0, "v", transactional=True, base_offset=0))
    assert at_zero.first_unstable_offset == 0


@pytest.mark.parametrize(
    ("epoch", "version", "is_open", "taken"),
    [
        (3, 0, True, True),
        (3, 1, True, True),
        (3, 2, True, False),  # KIP-1228: the end of this transaction has a larger epoch
        (3, 3, True, False),
        (4, 2, True, True),
        (2, 2, True, False),
        (2, 0, True, False),
        (2, 0, False, False),
        (3, 2, False, True),
        (3, 0, False, True),
    ],
)
def test_the_epoch_of_a_marker(epoch: int, version: int, is_open: bool, taken: bool) -> None:
    state = state_of(produced(0, "v", epoch=3, transactional=is_open))
    if taken:
        check_marker(state, marker(epoch), version)
    else:
        words = f"Epoch {epoch} {WHERE} is too old: the last seen epoch is 3"
        refused(InvalidProducerEpoch, "producer-epoch-old", words, check_marker, state, marker(epoch), version)


def test_offsets_of_a_transaction_are_judged_by_their_epoch_only() -> None:
    state = state_of(produced(0, "v", epoch=3, transactional=True))
    for version in (0, 2):
        check_marker(state, produced(0, "v", epoch=3, transactional=True), version)
        with pytest.raises(InvalidProducerEpoch):
            check_marker(state, produced(0, "v", epoch=2, transactional=True), version)


def test_a_coordinator_of_an_older_epoch_is_fenced() -> None:
    state = state_of(produced(0, "v", transactional=True))
    note(state, marker(0), coordinator_epoch=5)
    for epoch in (5, 6):
        check_marker(state, marker(0, coordinator_epoch=epoch), 0)
    words = f"A marker {WHERE} comes from a coordinator of epoch 4, and one of epoch 5"
    refused(
        TransactionCoordinatorFenced,
        "coordinator-epoch-old",
        words,
        check_marker,
        state,
        marker(0, coordinator_epoch=4),
        0,
    )
    note(state, marker(0), coordinator_epoch=2)
    assert [each.coordinator_epoch for each in state.describe()] == [5], "it never goes back"
    check_marker(state, produced(0, "v"), 0)


def test_every_batch_of_a_coordinators_append_is_judged() -> None:
    state = state_of(produced(0, "v", epoch=3))
    unknown, old = marker(0, producer_id=99), marker(2, base_offset=1)
    with pytest.raises(InvalidProducerEpoch):
        check_marker(state, unknown + old, 0)


def test_update_returns_the_first_offset_of_the_ended_transaction() -> None:
    state = state_of()
    assert note(state, produced(0, "v", transactional=True, base_offset=40)) == [-1]
    assert note(state, produced(1, "v", transactional=True, base_offset=41)) == [-1]
    assert state.first_unstable_offset == 40
    assert note(state, marker(0, base_offset=42)) == [40]
    assert note(state, marker(0, base_offset=43)) == [-1]
    assert state.first_unstable_offset is None
    assert note(state, batch("plain")) == [-1]
    assert len(state) == 1


def test_a_marker_is_no_data_batch_and_raises_the_epoch() -> None:
    state = state_of(produced(0, *values(3), base_offset=10, transactional=True))
    note(state, marker(1, base_offset=13))
    assert state.last_batches() == {PRODUCER: (-1, 1)}
    assert state.next_sequence(PRODUCER) == 0
    assert check(state, produced(0, "v", epoch=1)) is None
    with pytest.raises(OutOfOrderSequence):
        check(state, produced(3, "v", epoch=1))
    note(state, produced(0, "v", epoch=0, base_offset=14))
    assert state.last_batches() == {PRODUCER: (14, 1)}, "an epoch never goes back"


def test_the_next_sequence_wraps_behind_the_largest() -> None:
    state = state_of(produced(LARGEST_SEQUENCE - 1, *values(2)))
    assert state.next_sequence(PRODUCER) == 0
    assert check(state, produced(state.next_sequence(PRODUCER), "v")) is None


def test_describe_producers() -> None:
    state = state_of(produced(4, *values(3), epoch=2, transactional=True, base_offset=10), seen_ms=NOW_MS + 9)
    assert list(state.describe()) == [
        DescribedProducer(
            producer_id=PRODUCER,
            producer_epoch=2,
            last_sequence=6,
            last_timestamp_ms=NOW_MS + 9,
            coordinator_epoch=-1,
            transaction_start_offset=10,
        )
    ]
    assert list(state.open_transactions()) == [(PRODUCER, 2, 10)]
    note(state, marker(2, base_offset=13), seen_ms=NOW_MS, coordinator_epoch=8)
    assert list(state.describe()) == [DescribedProducer(PRODUCER, 2, 6, NOW_MS + 9, 8, -1)], "time never goes back"
    only_markers = state_of(marker(2), seen_ms=NOW_MS)
    assert list(only_markers.describe()) == [DescribedProducer(PRODUCER, 2, -1, NOW_MS, -1, -1)]
    assert (state.next_sequence(PRODUCER), state.next_sequence(99), only_markers.next_sequence(PRODUCER)) == (7, 0, 0)
    assert state.last_batches() == {PRODUCER: (12, 2)}
    assert only_markers.last_batches() == {PRODUCER: (-1, 2)}


@pytest.mark.parametrize(
    ("producer_id", "epoch", "sequence", "is_next"),
    [(7, 2, 13, True), (7, 2, 12, False), (7, 2, 14, False), (7, 1, 13, False), (7, 3, 13, False), (8, 2, 13, False)],
)
def test_is_next_in_sequence(producer_id: int, epoch: int, sequence: int, is_next: bool) -> None:
    state = state_of(produced(10, *values(3), epoch=2))
    assert state.is_next_in_sequence(producer_id, epoch, sequence) is is_next


def test_is_next_in_sequence_is_false_in_a_transaction_and_after_a_marker() -> None:
    for begins_at in (0, 1):
        state = state_of(produced(0, "v", transactional=True, base_offset=begins_at))
        assert not state.is_next_in_sequence(PRODUCER, 0, 1)
    assert not state_of(marker(0)).is_next_in_sequence(PRODUCER, 0, 0)


def test_record_next_equals_update() -> None:
    state, plainly = state_of(produced(0, "v")), state_of(produced(0, "v"))
    state.record_next(PRODUCER, 0, WrittenBatch(1, 2, 50, 51, NOW_MS), seen_ms=NOW_MS + 5)
    note(plainly, produced(1, *values(2), base_offset=50), seen_ms=NOW_MS + 5)
    assert state.snapshot() == plainly.snapshot()
    state.record_next(PRODUCER, 0, WrittenBatch(3, 3, 52, 52, NOW_MS), seen_ms=NOW_MS)
    note(plainly, produced(3, "v", base_offset=52))
    assert state.snapshot() == plainly.snapshot(), "time never goes back"
    assert check(state, produced(1, *values(2))) == WrittenBatch(1, 2, 50, 51, NOW_MS)


def test_record_next_adds_an_expired_producer() -> None:
    state = state_of()
    state.record_next(PRODUCER, 4, WrittenBatch(1, 2, 50, 51, NOW_MS), seen_ms=NOW_MS + 5)
    assert list(state.describe()) == [DescribedProducer(PRODUCER, 4, 2, NOW_MS + 5, -1, -1)]
    assert state.is_next_in_sequence(PRODUCER, 4, 3)


def test_a_transaction_begins_at_its_first_batch_even_at_offset_zero() -> None:
    state = state_of()
    for sequence in range(3):
        note(state, produced(sequence, "v", transactional=True, base_offset=sequence))
    assert state.first_unstable_offset == 0
    assert list(state.open_transactions()) == [(PRODUCER, 0, 0)]
    assert note(state, marker(0, base_offset=3)) == [0]


def test_a_producer_that_was_seen_at_time_zero_has_that_age() -> None:
    state = state_of(produced(0, "v"), seen_ms=0)
    state.record_next(8, 0, WrittenBatch(0, 0, 1, 1, NOW_MS), seen_ms=0)
    assert [each.last_timestamp_ms for each in state.describe()] == [0, 0]
    state.expire(1)
    assert len(state) == 0


def test_age_counts_from_the_last_batch() -> None:
    state = state_of(produced(0, "v", producer_id=1), produced(0, "v", producer_id=2, transactional=True))
    note(state, produced(1, "v", producer_id=1), seen_ms=NOW_MS + 10)
    state.expire(NOW_MS + 10)
    assert {each.producer_id for each in state.describe()} == {1, 2}
    state.expire(NOW_MS + 11)
    assert {each.producer_id for each in state.describe()} == {2}, "its transaction began at offset 0"


def test_the_bound_counts_producers_without_an_open_transaction() -> None:
    state = state_of(most=20)
    for number in range(10):
        note(state, produced(0, "v", producer_id=900 + number, transactional=True), seen_ms=0)
    for number in range(20):
        note(state, produced(0, "v", producer_id=number), seen_ms=NOW_MS + (20 - number))
    assert len(state) == 30
    note(state, produced(0, "v", producer_id=50), seen_ms=NOW_MS)
    known = {each.producer_id for each in state.describe()}
    assert len(known) == 29, "a tenth of those that are idle goes at once"
    assert known & set(range(20)) == set(range(18)), "those that wrote longest ago"
    small = state_of(produced(0, "v", producer_id=1), most=1)
    note(small, produced(0, "v", producer_id=2))
    assert {each.producer_id for each in small.describe()} == {2}
    five = state_of(*(produced(0, "v", producer_id=number) for number in range(5)), most=5)
    note(five, produced(0, "v", producer_id=9))
    assert len(five) == 5, "one goes where a tenth is less than one"
    assert ProducerState("flights", 3).most == 5_000


def test_clear_forgets_everything() -> None:
    state = state_of(produced(0, "v", transactional=True))
    state.clear()
    assert (len(state), state.first_unstable_offset, list(state.open_transactions())) == (0, None, [])
    assert state.last_batches() == {}
