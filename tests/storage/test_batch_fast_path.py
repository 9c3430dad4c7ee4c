"""The short way of usual batches ends where the long one ends: the same answers, errors and bytes on the disk."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.record_samples import hostile_batches
from tests.storage.log_samples import NOW_MS, ManualClock, batch, opened, produced

from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.storage.errors import StorageError
from headrace.storage.partition_log import PartitionLog
from headrace.storage.record_checks import check_record_lengths, is_candidate, read_record

MANY = [f"value {number}" for number in range(40)]


def long_way(log: PartitionLog, data: bytes) -> object:
    try:
        result = log.append(data, leader_epoch=3)
    except StorageError as refused:
        return type(refused), str(refused), refused.facts
    return result


def short_way(log: PartitionLog, data: bytes) -> tuple[object, bool]:
    """What came of it, and whether the short way was taken."""
    frame = b"before" + data + b"behind"
    if is_candidate(frame, 6, 6 + len(data)):
        try:
            result = log.append_fast_path(frame, 6, 6 + len(data), leader_epoch=3)
        except StorageError as refused:
            return (type(refused), str(refused), refused.facts), True
        if result is not None:
            return result, True
    return long_way(log, data), False


def bytes_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir()) if path.suffix != ".snapshot"}


def plain_or_hostile(chance: random.Random, now_ms: int) -> bytes:
    """Mostly one batch of records that are not compressed, sometimes bent at one place under a right checksum."""
    if chance.random() < 0.3:
        return hostile_batches(chance)
    count, times = chance.choice((1, 2, 8, 9, 30)), chance.choice((0, 1, 500))
    records = [
        PlainRecord(value=chance.randbytes(chance.choice((3, 3, 70))), timestamp_ms=now_ms - times * (count - number))
        for number in range(count)
    ]
    bent = bytearray(encode_batch(records))
    if chance.random() < 0.5:
        bent[chance.randrange(21, len(bent))] = chance.choice((0, 1, 2, 12, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        struct.pack_into(">I", bent, 17, crc32c(bytes(bent[21:])))
    return bytes(bent)


def test_fast_and_full_path_agree_on_random_and_damaged_batches(tmp_path: Path) -> None:
    clock = ManualClock(int(time.time() * 1000))
    logs = [opened(tmp_path / name, clock=clock, segment_bytes=20_000, index_interval_bytes=200) for name in "ab"]
    chance = random.Random(7)
    usual = 0
    for _ in range(800):
        data = plain_or_hostile(chance, clock.now_ms)
        clock.now_ms += chance.randrange(3)
        found, taken = short_way(logs[0], data)
        usual += taken
        assert found == long_way(logs[1], data), data.hex()
    assert usual > 200
    assert logs[0].segment_base_offsets == logs[1].segment_base_offsets
    for log in logs:
        log.close()
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize("count", [2, 3, 8, 9, 15, 70])
@pytest.mark.parametrize(("value_bytes", "step_ms"), [(20, 0), (1024, 1), (200, -1), (9000, 0)])
def test_fast_and_full_path_agree_on_damaged_uniform_records(
    count: int, value_bytes: int, step_ms: int, tmp_path: Path
) -> None:
    """What a producer of records of one size sends, bent where the fields of a record are."""
    logs = [opened(tmp_path / name) for name in "ab"]
    times = [NOW_MS + step_ms * number for number in range(count)]
    good = encode_batch([PlainRecord(value=b"\1" * value_bytes, timestamp_ms=each) for each in times])
    section = good[61:]
    starts = [0]
    while len(starts) < count:
        starts.append(read_record(section, starts[-1])[4])
    chance = random.Random(count)
    taken = []
    for turn in range(60):
        bent = bytearray(good)
        if turn:
            at = 61 + chance.choice(starts) + chance.randrange(-1, 9)
            bent[at] = chance.choice((0, 1, 2, 4, 0x7F, 0x80, bent[at] ^ 2, bent[at] ^ 0x80))
            struct.pack_into(">I", bent, 17, crc32c(bytes(bent[21:])))
        found, usual = short_way(logs[0], bytes(bent))
        taken.append(usual)
        assert found == long_way(logs[1], bytes(bent)), bent.hex()
    assert taken[0]
    for log in logs:
        log.close()
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"cleanup_policy": frozenset({"compact"})},
        {"message_timestamp_type": "LogAppendTime"},
        {"message_timestamp_before_max_ms": 1000},
        {"message_timestamp_after_max_ms": 1000},
        {"compression_type": "lz4"},
        {"compression_type": "uncompressed"},
        {"max_message_bytes": 300},
        {"segment_bytes": 300},
    ],
)
def test_fast_and_full_path_agree_under_every_setting(settings: dict[str, Any], tmp_path: Path) -> None:
    logs = [opened(tmp_path / name, **settings) for name in "ab"]
    taken = []
    for data in (
        batch("one"),
        batch(*MANY),
        batch("old", timestamp_ms=NOW_MS - 5000),
        batch("new", timestamp_ms=NOW_MS + 5000),
        batch(*MANY, timestamp_ms=NOW_MS - 5000),
        batch(*MANY, timestamp_ms=NOW_MS + 5000),
        batch("two", "times", timestamps=[NOW_MS, NOW_MS - 1]),
        batch("one", "two", "low", timestamps=[0, 2, -2]),
        batch("one", "two", "six", timestamps=[NOW_MS, NOW_MS - 1, NOW_MS + 1]),
        batch("none", timestamp_ms=-1),
        batch("before the beginning", timestamp_ms=-(2**60)),
        encode_batch([PlainRecord(key=b"k", value=b"v", timestamp_ms=NOW_MS, headers=(("h", b"x"), ("i", None)))]),
    ):
        found, usual = short_way(logs[0], data)
        taken.append(usual)
        assert found == long_way(logs[1], data)
    assert any(taken) or settings not in ({}, {"compression_type": "uncompressed"})
    for log in logs:
        log.close()
    assert bytes_of(tmp_path / "a") == bytes_of(tmp_path / "b")


def test_fast_and_full_path_agree_on_sequences(tmp_path: Path) -> None:
    logs = [opened(tmp_path / name) for name in "ab"]
    taken = []
    for data in (
        produced(0, *MANY),
        produced(40, "next"),
        produced(41, *MANY),
        produced(41, *MANY),  # a repeat
        produced(90, "a gap"),
        produced(0, "another epoch", epoch=1),
        produced(1, "goes on", epoch=1),
        produced(41, "the old one", epoch=0),
        produced(2**31 - 1, "the last number", producer_id=8),
        produced(0, "wraps", producer_id=8),
        produced(1, "and goes on", producer_id=8),
        produced(0, "opens", producer_id=9, transactional=True),
        produced(1, "outside", producer_id=9),
    ):
        found, usual = short_way(logs[0], data)
        taken.append(usual)
        assert found == long_way(logs[1], data)
        assert list(logs[0].producers.describe()) == list(logs[1].producers.describe())
    assert taken == [False, True, True, False, False, False, True, False, False, False, True, False, False]


def test_a_producer_may_expire_when_its_batch_rolls_the_segment(tmp_path: Path) -> None:
    clocks = [ManualClock(NOW_MS), ManualClock(NOW_MS)]
    logs = [
        opened(tmp_path / name, clock=clock, segment_bytes=300, producer_id_expiration_ms=1000)
        for name, clock in zip("ab", clocks, strict=True)
    ]
    taken = []
    for sequence in range(8):
        data = produced(sequence, "x" * 100)
        for clock in clocks:
            clock.now_ms += 2000
        found, usual = short_way(logs[0], data)
        taken.append(usual)
        assert found == long_way(logs[1], data)
        assert list(logs[0].producers.describe()) == list(logs[1].producers.describe())
        assert logs[0].producers.last_batches() == logs[1].producers.last_batches()
    assert taken == [False] + 7 * [True]
    assert len(logs[0].segment_base_offsets) == len(logs[1].segment_base_offsets) > 2


def test_reconfigure_takes_effect_at_once(tmp_path: Path) -> None:
    log = opened(tmp_path / "a")
    assert [short_way(log, batch("x"))[1]] == [True]
    log.reconfigure(replace(log.config, cleanup_policy=frozenset({"compact"})))
    assert not short_way(log, encode_batch([PlainRecord(key=b"k", value=b"v", timestamp_ms=NOW_MS)]))[1]
    log.reconfigure(replace(log.config, cleanup_policy=frozenset({"delete"}), max_message_bytes=100))
    assert short_way(log, batch("x"))[1]
    assert not short_way(log, batch("x" * 100))[1]


def test_a_failed_log_raises_log_failed(tmp_path: Path) -> None:
    log = opened(tmp_path / "a")
    log.close()
    assert log.append_fast_path(batch("x"), 0, len(batch("x")), leader_epoch=0) is None
    with pytest.raises(StorageError):
        log.append(batch("x"), leader_epoch=0)


def varint(value: int, more: int = 0) -> bytes:
    """Zigzag; `more` bytes than it needs."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    for _ in range(more):
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def fills(section: bytes, count: int) -> bool:
    """As `check_record_lengths` says it, one step a record."""
    position = 0
    for _ in range(count):
        value, shift = 0, 0
        while True:
            if position >= len(section) or shift > 28:
                return False
            byte = section[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        length = (value >> 1) ^ -(value & 1)
        if length < 6:
            return False
        position += length
    return position == len(section)


lengths = st.one_of(st.sampled_from((6, 63, 64, 64, 64, 100)), st.integers(-3, 70), st.sampled_from((8191, 8192)))


@given(
    runs=st.lists(st.tuples(lengths, st.integers(1, 40), st.integers(0, 2)), max_size=5),
    off_by=st.sampled_from((0, 0, 0, 1, -1)),
    bent=st.one_of(st.none(), st.tuples(st.integers(0, 10**6), st.integers(0, 255))),
)
def test_lengths_of_a_run_are_checked_like_single_lengths(
    runs: list[tuple[int, int, int]], off_by: int, bent: tuple[int, int] | None
) -> None:
    section = bytearray()
    count = off_by
    for length, times, more in runs:
        one = varint(length, more) + struct.pack(">B", times) * max(length, 0)
        section += one * times
        count += times
    if bent is not None and section:
        section[bent[0] % len(section)] = bent[1]
    if count < 0:
        return
    try:
        check_record_lengths(bytes(section), count)
    except (ValueError, IndexError):
        assert not fills(bytes(section), count)
    else:
        assert fills(bytes(section), count)
