"""Random histories of a compacted log beside a naive twin, which keeps everything and drops nothing.

Appends with and without transactions, tombstones, time, cleanings whole and broken off, kills, power losses, closings,
deleted records. After every step the table that a read_committed reader builds is the twin's, what is found was
written and is found where it was written, and the end is where it was. HEADRACE_COMPACTIONS=n runs n histories.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from tests.storage.compaction_samples import keyed
from tests.storage.faulty_file_system import FaultyFileSystem
from tests.storage.log_samples import ManualClock, opened

from headrace.protocol.record_batches import (
    AbortedTransaction,
    control_batch,
    control_type,
    decode_records,
    iter_batch_headers,
)
from headrace.storage.log_cleaning import LogCleaning
from headrace.storage.log_config import LogConfig

HISTORIES = int(os.environ.get("HEADRACE_COMPACTIONS", "32"))
STEPS = 70
CHUNKS = 4
LOGS = Path("/logs/flights-0")


class BrokenOff(Exception):
    """A cleaning that ends in the middle."""


@dataclass
class Twin:
    """Everything ever appended: (offset, key, value), and the transactions as (producer, first offset, outcome)."""

    records: list[tuple[int, str, str | None]] = field(default_factory=list)
    producer_of: dict[int, int] = field(default_factory=dict)
    decided: dict[int, str] = field(default_factory=dict)

    def table(self, start: int) -> dict[str, str]:
        found: dict[str, str] = {}
        for offset, key, value in self.records:
            if offset < start or self.decided.get(offset, "commit") != "commit":
                continue
            if value is None:
                found.pop(key, None)
            else:
                found[key] = value
        return found


class History:
    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.disk = FaultyFileSystem()
        self.clock = ManualClock()
        self.config = LogConfig(
            cleanup_policy=frozenset({"compact"}),
            segment_bytes=self.chance.choice([400, 700, 1500]),
            index_interval_bytes=60,
            delete_retention_ms=self.chance.choice([0, 2_000, 50_000]),
            min_compaction_lag_ms=self.chance.choice([0, 0, 3_000]),
        )
        if self.chance.random() < 0.2:
            self.config = self.config.with_fsync("always")
        self.twin = Twin()
        self.start = self.clean_to = self.number = 0
        self.sequences: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.log = self.opened()
        self.dropped = 0

    def opened(self, recovery_point: int = 0, clean: object = None):  # type: ignore[no-untyped-def]
        return opened(
            LOGS, file_system=self.disk, clock=self.clock, config=self.config, log_start_offset=self.start,
            recovery_point=recovery_point, clean=clean,
        )  # fmt: skip

    def step(self) -> None:
        steps: list[tuple[int, Callable[[], None]]] = [
            (40, self.append), (14, self.append_in_a_transaction), (8, self.transaction_ends), (10, self.time_passes),
            (10, self.clean), (6, self.clean_in_part), (3, self.kill), (3, self.power_fails), (2, self.close),
            (1, self.delete_records),
        ]  # fmt: skip
        action = self.chance.choices([action for _, action in steps], [weight for weight, _ in steps])[0]
        action()
        self.check(action.__name__)

    def pairs(self) -> list[tuple[str, str | None]]:
        self.number += 1
        return [
            (f"key-{self.chance.randrange(9)}" * self.chance.choice([1, 1, 6]), self.value())
            for _ in range(self.chance.randint(1, 4))
        ]

    def value(self) -> str | None:
        return None if self.chance.random() < 0.2 else f"{self.number}-" + "x" * self.chance.randrange(30)

    def append(self, producer: int = -1) -> None:
        pairs, how = self.pairs(), {"compression": self.chance.choice(["none", "none", "gzip", "lz4"])}
        if producer < 0 and self.chance.random() < 0.3:
            producer, transactional = 100 + self.chance.randrange(2), False
        else:
            transactional = producer >= 0
        if producer >= 0:
            sequence = self.sequences.get(producer, 0)
            self.sequences[producer] = sequence + len(pairs)
            how.update(producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=transactional)  # type: ignore[call-overload]
        base = self.log.append(keyed(*pairs, timestamp_ms=self.clock.now_ms, **how), leader_epoch=0).base_offset
        for i, (key, value) in enumerate(pairs):
            self.twin.records.append((base + i, key, value))
            if transactional:
                self.twin.producer_of[base + i] = producer
                self.open.setdefault(producer, []).append(base + i)

    def append_in_a_transaction(self) -> None:
        self.append(self.chance.randrange(3))

    def transaction_ends(self) -> None:
        if not self.open:
            return
        producer = self.chance.choice(sorted(self.open))
        how = self.chance.choice(["commit", "commit", "abort"])
        marker = control_batch(how, producer_id=producer, producer_epoch=0, timestamp_ms=self.clock.now_ms)  # type: ignore[arg-type]
        self.log.append(marker, leader_epoch=0, origin="coordinator")
        for offset in self.open.pop(producer):
            self.twin.decided[offset] = how

    def time_passes(self) -> None:
        self.clock.now_ms += self.chance.choice([1, 500, 3_000, 60_000])

    def clean(self, budget: int = 1 << 30) -> None:
        left = [budget]

        def throttle(_bytes: int) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise BrokenOff

        before = self.log.size_bytes
        self.log.flush()
        plan = self.log.plan_cleaning(self.clean_to, self.clock.now_ms)
        memory = self.chance.choice([1, 2_000, 1 << 20])
        cleaning = LogCleaning(plan, dedupe_buffer_bytes=memory, throttle=throttle)
        try:
            for swap in cleaning.clean_segments():
                assert self.log.swap_segments(swap)
        except BrokenOff:
            return
        self.clean_to = cleaning.end_offset
        self.dropped += before - self.log.size_bytes

    def clean_in_part(self) -> None:
        self.clean(self.chance.randrange(60))

    def kill(self) -> None:
        end, flushed = self.log.log_end_offset, self.log.recovery_point
        self.log.abandon()
        self.disk.generation += 1
        if self.chance.random() < 0.5:
            self.clean_to = 0  # the checkpoint is lost as well
        self.log = self.opened(self.chance.choice([0, flushed]))
        assert self.log.log_end_offset == end

    def power_fails(self) -> None:
        flushed = self.log.recovery_point
        self.log.abandon()
        self.disk.crash(self.chance)
        self.start = min(self.start, flushed)
        self.log = self.opened(flushed)
        end = self.log.log_end_offset
        assert end >= flushed
        self.start = self.log.log_start_offset
        # Behind what was flushed any file may have lost its end, so a segment may be short and the next one whole.
        there = self.offsets_since(flushed)
        self.twin.records = [each for each in self.twin.records if each[0] < flushed or each[0] in there]
        lost = {offset for offset in self.twin.producer_of if offset >= flushed and offset not in there}
        for offset in lost:
            del self.twin.producer_of[offset]
            self.twin.decided.pop(offset, None)
        # Markers may be lost while their records are not: then the transaction is open again.
        self.open = {}
        undecided = self.log.last_stable_offset
        markers = self.markers()
        for offset, producer in sorted(self.twin.producer_of.items()):
            if offset >= undecided and not any(offset < at for at in markers.get(producer, ())):
                self.twin.decided.pop(offset, None)
                self.open.setdefault(producer, []).append(offset)
        known = self.log.producers
        self.sequences = {producer: known.next_sequence(producer) for producer in self.sequences}

    def offsets_since(self, start: int) -> set[int]:
        found: set[int] = set()
        start = max(start, self.log.log_start_offset)
        while data := self.log.read(start, 1 << 20):
            for header in iter_batch_headers(data):
                found.update(range(header.base_offset, header.next_offset))
                start = header.next_offset
        return found

    def markers(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        offset = self.start
        while data := self.log.read(offset, 1 << 20):
            for header in iter_batch_headers(data):
                if header.is_control:
                    found.setdefault(header.producer_id, []).append(header.base_offset)
                offset = header.next_offset
        return found

    def close(self) -> None:
        clean = self.log.close()
        self.log = self.opened(self.log.log_end_offset, clean)
        assert not self.log.recovered

    def delete_records(self) -> None:
        self.start = self.log.delete_records_before(
            self.chance.randint(self.start, max(self.start, self.log.last_stable_offset // 2))
        )

    # -- what a reader finds ---------------------------------------------------------------------------------

    def read(self) -> list[tuple[int, str, str | None]]:
        """All records that count, decided or not, without those of aborted transactions."""
        data, offset = b"", self.start
        while part := self.log.read(offset, self.chance.choice([1, 500, 1 << 20])):
            data += part
            offset = [header.next_offset for header in iter_batch_headers(part)][-1]
        aborted = self.aborted(data)
        found = decode_records(data, start_offset=self.start, aborted_transactions=aborted)
        return [
            (each.offset, (each.key or b"").decode(), None if each.value is None else each.value.decode())
            for each in found
            if each.offset not in self.twin.producer_of or self.twin.decided.get(each.offset) == "commit"
        ]

    def aborted(self, data: bytes) -> list[AbortedTransaction]:
        """As a broker lists them: those of which something is left."""
        found: list[AbortedTransaction] = []
        begun: dict[int, int] = {}
        for header in iter_batch_headers(data):
            if header.is_control:
                first = begun.pop(header.producer_id, None)
                if first is not None and control_type(data, header) == "abort":
                    found.append(AbortedTransaction(header.producer_id, first))
            elif header.is_transactional:
                begun.setdefault(header.producer_id, header.base_offset)
        return found

    def check(self, what: str) -> None:
        found = self.read()
        assert set(found) <= set(self.twin.records), what
        assert [each[0] for each in found] == sorted({each[0] for each in found}), what
        table: dict[str, str] = {}
        for _, key, value in found:
            if value is None:
                table.pop(key, None)
            else:
                table[key] = value
        assert table == self.twin_table(), what

    def twin_table(self) -> dict[str, str]:
        decided = self.twin.decided
        undecided = {offset for offset in self.twin.producer_of if offset not in decided}
        return Twin(records=[each for each in self.twin.records if each[0] not in undecided], decided=decided).table(
            self.start
        )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_compacted_log_has_the_latest_value_of_each_key(chunk: int) -> None:
    dropped = 0
    for seed in range(chunk, HISTORIES, CHUNKS):
        history = History(seed)
        for number in range(STEPS):
            try:
                history.step()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}, step {number}: {error}") from error
        dropped += history.dropped
        history.log.abandon()
    assert dropped > 0, "nothing was ever compacted"
