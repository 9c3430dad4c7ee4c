"""Producer snapshots: Kafka's bytes, and nothing believed that is torn."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from tests.storage.log_samples import NOW_MS, produced

from headrace.protocol.record_batches import iter_batch_headers
from headrace.storage.producer_state import ProducerState, SnapshotCorrupt


def noted(*batches: bytes) -> ProducerState:
    state = ProducerState("flights", 0)
    for data in batches:
        for header in iter_batch_headers(data):
            state.update(header, seen_ms=NOW_MS)
    return state


def test_a_snapshot_is_kafkas() -> None:
    state = noted(produced(4, "a", "b", "c", producer_id=9, epoch=2, base_offset=10))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, 6, 12, 2, NOW_MS, -1, -1)
    assert state.snapshot() == struct.pack(">hI", 1, google_crc32c.value(body)) + body


def test_a_snapshot_brings_the_state_back() -> None:
    state = noted(
        produced(0, "a", producer_id=1),
        produced(2**31 - 1, "a", "b", producer_id=2, base_offset=1),
        produced(0, "a", producer_id=3, base_offset=3, transactional=True),
    )
    again = ProducerState("flights", 0)
    again.load(state.snapshot())
    assert again.snapshot() == state.snapshot()
    assert again.first_unstable_offset == 3
    for data in (produced(0, "a", producer_id=1), produced(2**31 - 1, "a", "b", producer_id=2)):
        assert again.check(iter_batch_headers(data)) == state.check(iter_batch_headers(data)) is not None


def test_no_torn_snapshot_is_believed() -> None:
    whole = noted(produced(0, "a", producer_id=1)).snapshot()
    state = noted(produced(5, "a", producer_id=2))
    before = state.snapshot()
    torn = [whole[:n] for n in range(len(whole))]
    flipped = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    for data in torn + flipped:
        with pytest.raises(SnapshotCorrupt):
            state.load(data)
    assert state.snapshot() == before


def test_producers_are_forgotten_by_age_unless_a_transaction_is_open() -> None:
    state = noted(produced(0, "a", producer_id=1), produced(0, "a", producer_id=2, transactional=True))
    state.expire(NOW_MS)
    assert len(state) == 2
    state.expire(NOW_MS + 1)
    assert len(state) == 1
