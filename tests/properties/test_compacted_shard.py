"""A shard loaded from its compacted log is the live one: real batches, real segments, cleaned at random moments."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

import pytest
from tests.properties.streams_histories import History
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import ManualClock, opened

from headrace.broker.coordinators.coordinator_logs import coordinator_records
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.storage.log_cleaning import LogCleaning
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

HISTORIES = int(os.environ.get("HEADRACE_COMPACTED_SHARDS", "8"))
STEPS = 250
CHUNKS = 4
LOGS = Path("/logs/__consumer_offsets-0")


class CompactedLog:
    """What the history's shard wrote, in a log that is cleaned now and then."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.clock = ManualClock()
        self.config = LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=3_000,
            delete_retention_ms=chance.choice([0, 5_000]),
        )
        self.log: PartitionLog = opened(LOGS, file_system=FaultyFileSystem(), clock=self.clock, config=self.config)
        self.taken = self.clean_to = self.dropped = 0

    def take(self, written: list[tuple[bytes, bytes | None]]) -> None:
        new = written[self.taken :]
        self.taken = len(written)
        if new:
            records = [PlainRecord(key=key, value=value, timestamp_ms=self.clock.now_ms) for key, value in new]
            self.log.append(encode_batch(records, base_sequence=0), leader_epoch=0, origin="coordinator")
        self.clock.now_ms += self.chance.choice([1, 100, 10_000])

    def clean(self) -> None:
        before = self.log.size_bytes
        self.log.flush()
        plan = self.log.plan_cleaning(self.clean_to, self.clock.now_ms)
        cleaning = LogCleaning(plan, dedupe_buffer_bytes=self.chance.choice([2_000, 1 << 20]))
        for number, swap in enumerate(cleaning.clean_segments()):
            assert self.log.swap_segments(swap)
            if self.chance.random() < 0.1 and number:
                return  # broken off: some segments are cleaned, the mark is where it was
        self.clean_to = cleaning.end_offset
        self.dropped += before - self.log.size_bytes


def loaded(history: History, log: PartitionLog) -> GroupCoordinatorShard:
    shard = history._fresh_shard()
    for record in coordinator_records(log.read, log.log_start_offset, log.high_watermark):
        shard.replay(record)
    return shard


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_shard_loaded_from_a_compacted_log_is_the_live_one(chunk: int) -> None:
    dropped = 0
    for seed in range(chunk, HISTORIES, CHUNKS):
        history, chance = History(seed), Random(seed)
        compacted = CompactedLog(chance)
        for number in range(STEPS):
            history.step()
            compacted.take(history.log)
            if chance.random() < 0.1:
                compacted.clean()
                assert loaded(history, compacted.log).digest() == history.shard.digest(), f"seed {seed}, step {number}"
        compacted.clean()
        assert loaded(history, compacted.log).digest() == history.shard.digest(), f"seed {seed}"
        dropped += compacted.dropped
    assert dropped > 3_000, "hardly anything was compacted"
