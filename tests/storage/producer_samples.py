"""States of producers made of batches."""

from __future__ import annotations

from tests.storage.log_samples import NOW_MS

from headrace.protocol.record_batches import control_batch, iter_batch_headers
from headrace.storage.producer_state import (
    ProducerState,
    WrittenBatch,
)

PRODUCER = 7


def state_of(*batches: bytes, seen_ms: int = NOW_MS, coordinator_epoch: int = -1, most: int = 5_000) -> ProducerState:
    state = ProducerState("flights", 3, most)
    for data in batches:
        note(state, data, seen_ms=seen_ms, coordinator_epoch=coordinator_epoch)
    return state


def note(state: ProducerState, data: bytes, *, seen_ms: int = NOW_MS, coordinator_epoch: int = -1) -> list[int]:
    return [
        state.update(header, seen_ms=seen_ms, coordinator_epoch=coordinator_epoch)
        for header in iter_batch_headers(data)
    ]


def check(state: ProducerState, *batches: bytes, version: int = 0) -> WrittenBatch | None:
    return state.check([header for data in batches for header in iter_batch_headers(data)], version)


def values(count: int) -> list[str]:
    return ["v"] * count


def marker(epoch: int, *, producer_id: int = PRODUCER, coordinator_epoch: int = 0, base_offset: int = 0) -> bytes:
    return control_batch(
        "commit",
        producer_id=producer_id,
        producer_epoch=epoch,
        timestamp_ms=NOW_MS,
        coordinator_epoch=coordinator_epoch,
        base_offset=base_offset,
    )


def noted(*batches: bytes) -> ProducerState:
    state = ProducerState("flights", 0)
    for data in batches:
        for header in iter_batch_headers(data):
            state.update(header, seen_ms=NOW_MS)
    return state
