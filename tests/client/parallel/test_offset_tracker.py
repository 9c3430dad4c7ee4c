"""Finished offsets of a partition as runs, and their form in the metadata of a commit."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.parallel.offset_tracker import LONGEST_TEXT, OffsetTracker, decode_finished, encode_finished


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 40), gap=st.sampled_from([1, 2, 90, 10**9, 10**15]))
def test_work_in_the_window_always_fits_into_the_metadata(seed: int, gap: int) -> None:
    random = Random(seed)
    tracker = OffsetTracker()
    offset = random.choice([0, 1 << 40])
    begun = []
    for _ in range(random.choice([50, 400, 2_000])):
        ordinal = tracker.next_ordinal
        tracker.add(offset)
        if not tracker.may_begin(offset, ordinal):
            break
        begun.append(offset)
        offset += random.choice([1, gap])
    share = random.choice([0.1, 0.5, 0.9])
    ended = [each for number, each in enumerate(begun[1:]) if (random.random() < share if gap > 2 else number % 2)]
    for each in ended:
        tracker.finish(each)
    snapshot = tracker.take_snapshot()
    assert snapshot is not None
    assert snapshot.offset == begun[0]
    assert len(snapshot.metadata) <= LONGEST_TEXT
    again = OffsetTracker((snapshot.offset, snapshot.metadata))
    assert [each for each in begun if not again.add(each)] == ended


@settings(max_examples=60, deadline=None)
@given(
    committed=st.integers(0, 1 << 60),
    lengths=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), max_size=30),
    topic_id=st.none() | st.uuids(),
    other_id=st.none() | st.uuids(),
)
def test_runs_come_back(
    committed: int, lengths: list[tuple[int, int]], topic_id: UUID | None, other_id: UUID | None
) -> None:
    runs, at = [], committed
    for gap, length in lengths:
        runs.append((at + gap, at + gap + length))
        at += gap + length
    text = encode_finished(committed, runs, topic_id)
    assert decode_finished(committed, text, topic_id) == tuple(runs)
    if runs:
        assert decode_finished(committed + 1, text, topic_id) is None  # another offset's
        if other_id != topic_id:
            assert decode_finished(committed, text, other_id) is None  # another topic's


@settings(max_examples=100, deadline=None)
@given(garbage=st.text(max_size=80), damage=st.integers(0, 200), byte=st.characters(codec="ascii"))
def test_metadata_of_another_client_counts_as_none(garbage: str, damage: int, byte: str) -> None:
    assert decode_finished(5, garbage, None) in (None, ())
    assert decode_finished(5, "headrace-finished:" + garbage, None) is None
    text = encode_finished(5, [(7, 9), (40, 90)], None)
    at = damage % len(text)
    damaged = text[:at] + byte + text[at + 1 :]
    assert decode_finished(5, damaged, None) in (None, ((7, 9), (40, 90)))
    assert OffsetTracker((5, garbage)).add(5)


@pytest.mark.parametrize("metadata", ["", "AwAAAZ", "\x00\x01", "x" * 100_000, "headrace-finished:AQAAAAAA"])
def test_a_commit_with_any_metadata_begins_at_its_offset(metadata: str) -> None:
    tracker = OffsetTracker((3, metadata))
    assert tracker.add(3)
    assert tracker.next_offset == 3
