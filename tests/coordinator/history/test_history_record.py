"""Entries and their bytes: what was written is read, slots bound the topic, and other bytes are refused."""

from __future__ import annotations

import json

import pytest

from headrace.coordinator.history.history_record import Author, HistoryRecord, read_key, record_key
from headrace.coordinator.history.standstill import PartitionStandstill

STANDSTILL = PartitionStandstill(
    topic="in",
    partition=3,
    lost_ms=5,
    assigned_ms=9,
    at_least_ms=4,
    at_most_ms=None,
    from_member="one",
    to_member="two",
)
ENTRY = HistoryRecord(
    group_id="orders",
    sequence=7,
    step=5,
    at_ms=1_000,
    kind="standstill",
    author=Author(client_id="one", client_host="/127.0.0.1", request="LeaveGroup"),
    partitions=(STANDSTILL,),
    partition_count=1,
    rate_before=0.0,
)


def test_an_entry_is_read_as_it_was_written() -> None:
    assert HistoryRecord.from_json(ENTRY.to_json()) == ENTRY
    bare = HistoryRecord(group_id="g", sequence=0, step=0, at_ms=1, kind="rebalance")
    assert json.loads(bare.to_json()) == {"group_id": "g", "sequence": 0, "step": 0, "at_ms": 1, "kind": "rebalance"}
    assert HistoryRecord.from_json(bare.to_json()) == bare


def test_fields_of_a_newer_version_are_left_out() -> None:
    document = {**json.loads(ENTRY.to_json()), "colour": "blue"}
    assert HistoryRecord.from_json(json.dumps(document).encode()) == ENTRY


@pytest.mark.parametrize("value", [b"", b"[]", b"7", b"{}", b'{"group_id": "g", "author": 7}', b"\xff"])
def test_other_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError):
        HistoryRecord.from_json(value)


def test_a_group_has_as_many_keys_as_records_are_kept() -> None:
    keys = {record_key("a:b", sequence, 10) for sequence in range(1_000)}
    assert len(keys) == 10
    assert {read_key(key)[0] for key in keys} == {"a:b"}
