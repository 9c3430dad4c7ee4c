"""How fast a broker takes up its groups after a start: replay of `__consumer_offsets`, a million records by default.

    python benchmarks/replay.py [RECORDS]

The log is what Kafka's coordinator writes: nine in ten records are commits of offsets (500 groups of 20 partitions),
the rest members' assignments of streams groups; batches of 1 to 50 records, as a backlog makes them. Measured in one
process, one partition: reading and checking the segments, decoding keys and values, replay into a shard; with the whole
log, with the log that compaction leaves, with a log where no key comes twice; and the compaction itself. One JSON line
per measurement; rates are offsets per second of CPU.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from headrace.broker.coordinators.coordinator_logs import coordinator_records
from headrace.coordinator.configuration import GroupCoordinatorConfiguration
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records.serde import encode_key, encode_value
from headrace.coordinator.shard import GroupCoordinatorShard
from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.storage.log_cleaning import LogCleaning
from headrace.storage.log_config import LogConfig
from headrace.storage.partition_log import PartitionLog

NOW_MS = 1_760_000_000_000
CONFIG = LogConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=2 * 1024**2, max_message_bytes=1024**2)


def records(count: int) -> Iterator[PlainRecord]:
    chance = random.Random(7)
    for number in range(count):
        group = f"application-{chance.randrange(500)}"
        if chance.random() < 0.9:
            key: object = s.OffsetCommitKey(group=group, topic="orders", partition=chance.randrange(20))
            value: object = s.OffsetCommitValue(offset=number, leader_epoch=3, commit_timestamp=NOW_MS + number)
        else:
            member = f"member-{chance.randrange(4)}"
            key = s.StreamsGroupCurrentMemberAssignmentKey(group_id=group, member_id=member)
            tasks = s.CurrentTaskIds(subtopology_id="0", partitions=(0, 1, 2, 3, 4), assignment_epochs=(2,) * 5)
            value = s.StreamsGroupCurrentMemberAssignmentValue(
                member_epoch=number, previous_member_epoch=number - 1, state=0, active_tasks=(tasks,)
            )
        yield PlainRecord(key=encode_key(key), value=encode_value(value), timestamp_ms=NOW_MS + number)


def written(directory: Path, count: int, source: Callable[[int], Iterator[PlainRecord]] = records) -> PartitionLog:
    log = PartitionLog.open(
        directory, topic="__consumer_offsets", partition=0, config=CONFIG, clock_ms=lambda: NOW_MS + count
    )
    chance = random.Random(11)
    batch: list[PlainRecord] = []
    size = 1
    for record in source(count):
        batch.append(record)
        if len(batch) == size:
            log.append(encode_batch(batch, base_sequence=0), leader_epoch=0, origin="coordinator")
            batch, size = [], chance.randint(1, 50)
    if batch:
        log.append(encode_batch(batch, base_sequence=0), leader_epoch=0, origin="coordinator")
    return log


def replayed(log: PartitionLog) -> tuple[GroupCoordinatorShard, int]:
    shard = GroupCoordinatorShard(0, GroupCoordinatorConfiguration(), MetadataImage(version=1, topics={}))
    count = 0
    for record in coordinator_records(log.read, log.log_start_offset, log.high_watermark):
        shard.replay(record)
        count += 1
    shard.on_loaded(now_ms=NOW_MS)
    return shard, count


def distinct(count: int) -> Iterator[PlainRecord]:
    """The worst case: no key comes twice."""
    for number in range(count):
        key = s.OffsetCommitKey(group=f"application-{number % 500}", topic="orders", partition=number)
        value = s.OffsetCommitValue(offset=number, leader_epoch=3, commit_timestamp=NOW_MS + number)
        yield PlainRecord(key=encode_key(key), value=encode_value(value), timestamp_ms=NOW_MS + number)


def measured(what: str, log: PartitionLog, count: int) -> str:
    began, cpu = time.perf_counter(), time.process_time()
    shard, decoded = replayed(log)
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    report(what, offsets=count, decoded=decoded, bytes=log.size_bytes, wall=wall, cpu=cpu, rate=round(count / cpu))
    return shard.digest()


def report(what: str, *, wall: float, cpu: float, **facts: object) -> None:
    line = {"measurement": what, **facts, "wall_seconds": round(wall, 3), "cpu_seconds": round(cpu, 3)}
    print(json.dumps(line), flush=True)


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        log = written(Path(directory) / "__consumer_offsets-0", count)
        whole = measured("replay of the whole log", log, count)
        before = log.size_bytes
        began, cpu = time.perf_counter(), time.process_time()
        log.flush()
        for swap in LogCleaning(log.plan_cleaning(0, NOW_MS)).clean_segments():
            log.swap_segments(swap)
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        report("compaction", records=count, bytes=before, bytes_after=log.size_bytes, wall=wall, cpu=cpu)
        compacted = measured("replay of the compacted log", log, count)
        log.close()
        log = written(Path(directory) / "__consumer_offsets-1", count, distinct)
        measured("replay where no key comes twice", log, count)
        log.close()
        if whole != compacted:
            raise SystemExit("the compacted log does not hold the same state")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
