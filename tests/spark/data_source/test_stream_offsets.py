"""Offsets of streaming queries: their form in checkpoints, where batches begin, and limits."""

from __future__ import annotations

import json

import pytest

from headrace.errors import HeadraceError
from headrace.spark.data_source.offset_ranges import LogBounds, OffsetRange
from headrace.spark.data_source.stream_offsets import INITIAL, StreamOffset, begin_positions, limit_ends, ranges_between

A, B = ("orders", 0), ("orders", 1)
BEFORE = StreamOffset(offsets={A: 5}, topic_ids={"orders": "id-1"})
FULL = LogBounds(0, 9, 9)


def begins(ids: dict[tuple[str, int], str], bounds: dict[tuple[str, int], LogBounds], *, strict: bool = True) -> object:
    return begin_positions(BEFORE, ids, bounds, fail_on_data_loss=strict)


def test_an_offset_is_read_back_from_its_json_with_sorted_keys() -> None:
    offset = StreamOffset(offsets={("b", 10): 1, ("b", 9): 2, A: 3}, topic_ids={"orders": "x", "b": ""}, starts={A: 1})
    text = json.dumps(offset.as_json())
    assert StreamOffset.parse(json.loads(text)) == offset
    assert list(json.loads(text)["offsets"]) == ["b", "orders"]
    assert StreamOffset.parse(INITIAL) is None


@pytest.mark.parametrize("given", [{"orders": {"0": 5}}, {"offsets": {"orders": 5}, "topic_ids": {}}, {}])
def test_a_checkpoint_of_another_source_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(HeadraceError, match="of the checkpoint is none of") as caught:
        StreamOffset.parse(given)
    assert "checkpointLocation" in caught.value.fix


def test_a_batch_begins_where_the_one_before_ended_and_new_partitions_at_their_beginning() -> None:
    assert begins({A: "id-1", B: "id-1"}, {A: FULL, B: FULL}) == {A: 5, B: 0}
    # A broker without topic ids, before or now.
    assert begins({A: ""}, {A: FULL}) == {A: 5}


@pytest.mark.parametrize(
    ("ids", "bounds", "message", "lenient"),
    [
        ({A: "id-1"}, {A: LogBounds(7, 9, 9)}, "its log begins at 7", {A: 7}),
        ({A: "id-1"}, {A: LogBounds(0, 3, 3)}, "ends at 3", {A: 3}),
        ({A: "id-2"}, {A: FULL}, "deleted and created again", {A: 0}),
        ({B: "id-1"}, {B: FULL}, "does not exist any more", {B: 0}),
        ({A: "id-1", B: "id-1"}, {A: FULL, B: LogBounds(2, 9, 9)}, "the partition is new", {A: 5, B: 2}),
    ],
)
def test_lost_records_fail_the_query_or_are_passed_over(
    ids: dict[tuple[str, int], str], bounds: dict[tuple[str, int], LogBounds], message: str, lenient: object
) -> None:
    with pytest.raises(HeadraceError, match=message):
        begins(ids, bounds)
    assert begins(ids, bounds, strict=False) == lenient


def test_ranges_of_a_batch_depend_on_its_two_offsets_alone() -> None:
    end = StreamOffset(offsets={A: 8, B: 4, ("idle", 0): 3}, topic_ids={"orders": "id-1"}, starts={B: 1})
    ranges = [
        OffsetRange(topic="orders", partition=0, start=5, end=8, topic_id="id-1"),
        OffsetRange(topic="orders", partition=1, start=1, end=4, topic_id="id-1"),
    ]
    assert ranges_between(BEFORE, end) == ranges
    # The first batch of a query has all its starts in its end.
    assert ranges_between(None, StreamOffset(offsets={A: 8}, topic_ids={}, starts={A: 7})) == [
        OffsetRange(topic="orders", partition=0, start=7, end=8)
    ]


def test_a_limit_is_kept_exactly_and_shared_in_proportion() -> None:
    zero = {(t, 0): 0 for t in "abc"}
    ends = {("a", 0): 1_000_000, ("b", 0): 500_000, ("c", 0): 1}
    limited = limit_ends(zero, ends, 100)
    assert sum(limited.values()) == 100
    assert limited == {("a", 0): 66, ("b", 0): 33, ("c", 0): 1}
    assert limit_ends(zero, ends, 2_000_000) == ends
    assert sum(limit_ends(zero, ends, 2).values()) == 2
    assert limit_ends({A: 5}, {A: 9}, 1) == {A: 6}
