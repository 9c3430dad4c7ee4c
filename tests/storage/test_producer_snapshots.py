"""Producer snapshots: Kafka's bytes, and nothing is believed that is torn."""

from __future__ import annotations

import struct

import google_crc32c
import pytest
from tests.storage.log_samples import NOW_MS, produced
from tests.storage.producer_samples import PRODUCER, check, marker, note, noted, state_of, values

from headrace.protocol.record_batches import control_batch, iter_batch_headers
from headrace.storage.producer_state import (
    LARGEST_SEQUENCE,
    ProducerState,
    SnapshotCorrupt,
    WrittenBatch,
)


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


def test_truncated_snapshots_are_refused() -> None:
    whole = noted(produced(0, "a", producer_id=1)).snapshot()
    state = noted(produced(5, "a", producer_id=2))
    before = state.snapshot()
    torn = [whole[:n] for n in range(len(whole))]
    flipped = [whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :] for n in range(len(whole))]
    for data in torn + flipped:
        with pytest.raises(SnapshotCorrupt):
            state.load(data)
    assert state.snapshot() == before


def test_a_snapshot_of_a_producer_with_markers_only_is_kafkas() -> None:
    state = noted(control_batch("commit", producer_id=9, producer_epoch=2, timestamp_ms=NOW_MS))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 9, 2, -1, -1, 0, NOW_MS, -1, -1)
    assert state.snapshot() == struct.pack(">hI", 1, google_crc32c.value(body)) + body


@pytest.mark.parametrize(
    ("sequence", "count"), [(0, 1), (0, 3), (5, 3), (LARGEST_SEQUENCE - 1, 2), (LARGEST_SEQUENCE, 3)]
)
def test_a_loaded_state_knows_what_the_saved_one_knew(sequence: int, count: int) -> None:
    state = state_of(produced(sequence, *values(count), epoch=2, base_offset=30))
    loaded = state_of(produced(9, "v", producer_id=1234, transactional=True))
    loaded.load(state.snapshot())
    assert list(loaded.describe()) == list(state.describe())
    repeat = produced(sequence, *values(count), epoch=2)
    assert check(loaded, repeat) == check(state, repeat) is not None
    assert list(loaded.open_transactions()) == []


def test_a_loaded_state_knows_markers_and_a_transaction_at_offset_zero() -> None:
    state = state_of(marker(1), coordinator_epoch=6)
    note(state, produced(0, "v", producer_id=8, transactional=True))
    loaded = state_of()
    loaded.load(state.snapshot())
    assert list(loaded.describe()) == list(state.describe())
    assert list(loaded.open_transactions()) == [(8, 0, 0)]
    assert loaded.last_batches() == {PRODUCER: (-1, 1), 8: (0, 0)}
    assert check(loaded, produced(0, "v", producer_id=8)) == WrittenBatch(0, 0, 0, 0, NOW_MS)
    empty = state_of()
    empty.load(state_of().snapshot())
    assert len(empty) == 0


def test_corrupt_snapshots_are_refused() -> None:
    whole = state_of(produced(0, "v")).snapshot()
    for data, words in (
        (whole[:9], "too short"),
        (whole[:-1], f"version 1 with 1 entries in {len(whole) - 1} bytes"),
        (b"\x00\x02" + whole[2:], f"version 2 with 1 entries in {len(whole)} bytes"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "the CRC differs"),
    ):
        with pytest.raises(SnapshotCorrupt, match=f"^{words}$"):
            state_of().load(data)
