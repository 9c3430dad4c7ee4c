"""A walk over the records of a batch sees what one look at each would see: all of it where records are alike."""

from __future__ import annotations

from random import Random

import pytest

from headrace.protocol.record_batches import PlainRecord, encode_batch
from headrace.storage.record_checks import MAX_SINGLE_CHECKS, check_keyed_records, check_records, read_record

HEADER_BYTES = 61


def is_sound(section: bytes, count: int) -> bool:
    """One look at each."""
    position = 0
    try:
        for index in range(count):
            _, offset_delta, _, _, position = read_record(section, position)
            if offset_delta != index:
                return False
    except (IndexError, ValueError):
        return False
    return position == len(section)


def passes(section: bytes, count: int) -> bool:
    try:
        check_records(section, count)
    except (IndexError, ValueError):
        return False
    return True


def alike(count: int, *, key_bytes: int | None, value_bytes: int | None, step_ms: int) -> bytes:
    key = None if key_bytes is None else b"k" * key_bytes
    value = None if value_bytes is None else b"v" * value_bytes
    records = [PlainRecord(key=key, value=value, timestamp_ms=1_000 + index * step_ms) for index in range(count)]
    return encode_batch(records)[HEADER_BYTES:]


SHAPES = [
    (13, 1, 1, 0),
    (60, None, 3, 1),
    (160, None, 90, 0),
    (200, 5, None, 1),
    (400, 3, 200, 40),  # timestamps and offsets of one byte and of two
    (150, 70, 8200, 3),
]


@pytest.mark.parametrize(("count", "key_bytes", "value_bytes", "step_ms"), SHAPES)
def test_damaged_uniform_records_are_refused(
    count: int, key_bytes: int | None, value_bytes: int | None, step_ms: int
) -> None:
    section = alike(count, key_bytes=key_bytes, value_bytes=value_bytes, step_ms=step_ms)
    assert passes(section, count)
    assert not passes(section, count - 1)
    assert not passes(section, count + 1)
    chance = Random(count)
    for _ in range(150):
        bent = bytearray(section)
        # Near the beginning of some record, where its fields are, or anywhere.
        at = chance.randrange(len(bent)) // 4 * 4 if chance.random() < 0.3 else _near_a_record(section, count, chance)
        bent[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, bent[at] ^ 2, bent[at] ^ 0x80))
        assert passes(bytes(bent), count) is is_sound(bytes(bent), count), (at, bent[at])


def _near_a_record(section: bytes, count: int, chance: Random) -> int:
    position = 0
    for _ in range(chance.randrange(count)):
        position = read_record(section, position)[4]
    return min(position + chance.randrange(12), len(section) - 1)


def test_sound_records_are_accepted_and_refused_ones_are_unsound() -> None:
    chance = Random(3)
    for _ in range(600):
        count = chance.choice((chance.randrange(1, 24), chance.randrange(1, 120)))
        sizes = [chance.choice((0, 5, 5, 5, 63, 70, 300, 9_000)) for _ in range(chance.randrange(1, 4))]
        late = chance.randrange(count)
        records = [
            PlainRecord(
                key=chance.choice((None, b"", b"key", b"k" * 64)) if chance.random() < 0.3 else b"key",
                value=None if chance.random() < 0.05 else b"v" * chance.choice(sizes),
                timestamp_ms=5_000 + chance.choice((0, 1, 70)) * index * (index > late),
                headers=(("h", b"1"),) if chance.random() < 0.05 else (),
            )
            for index in range(count)
        ]
        section = encode_batch(records)[HEADER_BYTES:]
        assert passes(section, count)
        bent = bytearray(section)
        bent[chance.randrange(len(bent))] = chance.randrange(256)
        if not passes(bytes(bent), count):
            assert not is_sound(bytes(bent), count)


def test_the_first_of_many_non_uniform_records_are_checked() -> None:
    count = 4 * MAX_SINGLE_CHECKS
    records = [PlainRecord(value=b"v" * (20 + 7 * index % 31), timestamp_ms=1_000) for index in range(count)]
    section = encode_batch(records)[HEADER_BYTES:]
    starts = [0]
    while len(starts) < count:
        starts.append(read_record(section, starts[-1])[4])

    def with_another_offset(index: int) -> bytes:
        bent = bytearray(section)
        bent[starts[index] + 3] ^= 2
        return bytes(bent)

    assert not passes(with_another_offset(MAX_SINGLE_CHECKS - 1), count)
    assert passes(with_another_offset(MAX_SINGLE_CHECKS), count), "found by its reader"


def unlike(count: int) -> tuple[bytes, list[int]]:
    """Records of many lengths, and where they begin."""
    records = [
        PlainRecord(key=(None, b"", b"key")[index % 3], value=b"v" * (index * 17 % 90), timestamp_ms=1_000 + index)
        for index in range(count)
    ]
    section, starts = encode_batch(records)[HEADER_BYTES:], [0]
    while len(starts) < count:
        starts.append(read_record(section, starts[-1])[4])
    return section, starts


@pytest.mark.parametrize("count", [4, 7, MAX_SINGLE_CHECKS])
def test_damaged_records_of_a_small_batch_are_refused(count: int) -> None:
    section, starts = unlike(count)
    assert passes(section, count)
    assert not passes(section, count - 1)
    assert not passes(section, count + 1)
    for at in range(len(section)):
        for byte in (0, 1, 2, 0x7F, 0x80, 0xFF, section[at] ^ 1, section[at] ^ 2):
            bent = bytearray(section)
            bent[at] = byte
            assert passes(bytes(bent), count) is is_sound(bytes(bent), count), (at, byte, starts)


def test_all_plain_records_of_a_small_batch_are_checked() -> None:
    section, starts = unlike(23)
    assert passes(section, 23)
    for start in starts:
        bent = bytearray(section)
        at = start + (3 if section[start] < 0x80 else 4)
        bent[at] ^= 2
        assert not passes(bytes(bent), 23)


def timestamps_if_keyed(section: bytes, count: int) -> tuple[int, int] | None:
    """By one look at each; None where a key is missing, or something is not sound."""
    position, deltas = 0, [0]
    if not is_sound(section, count):
        return None
    for _ in range(count):
        delta, _, key, _, position = read_record(section, position)
        if key < 0:
            return None
        deltas.append(delta)
    return min(deltas), max(deltas)


def drawn_with_keys(count: int, longest_run: int, chance: Random) -> list[PlainRecord]:
    """In runs of records of one form, their bytes their own."""
    records: list[PlainRecord] = []
    while len(records) < count:
        key, value = chance.choice((0, 5, 6, 7, 70)), chance.choice((None, 0, 8, 9, 63, 64, 200))
        timestamp_ms = 5_000 + chance.choice((0, -3, 90, 4_000))
        for _ in range(min(chance.randint(1, longest_run), count - len(records))):
            body = None if value is None else chance.randbytes(value)
            records.append(PlainRecord(key=chance.randbytes(key), value=body, timestamp_ms=timestamp_ms))
    return records


@pytest.mark.parametrize(
    ("count", "longest_run"), [(1, 1), (70, 1), (70, 30), (700, 1), (700, 80), (9_000, 1), (20_000, 9_000)]
)
def test_keyed_check_equals_single_checks(count: int, longest_run: int) -> None:
    chance = Random(count * longest_run)
    for _ in range(max(2, 1_000 // count)):
        records = drawn_with_keys(count, longest_run, chance)
        section = encode_batch(records)[HEADER_BYTES:]
        assert check_keyed_records(section, count) == timestamps_if_keyed(section, count) is not None
        assert check_keyed_records(section, count + 1) is None
        assert count == 1 or check_keyed_records(section, count - 1) is None
        for _ in range(max(3, 100 // count)):
            bent = bytearray(section)
            at = chance.randrange(len(bent)) if chance.random() < 0.3 else _near_a_record(section, count, chance)
            bent[at] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF, bent[at] ^ 2, bent[at] ^ 0x80))
            found = check_keyed_records(bytes(bent), count)
            assert found is None or found == timestamps_if_keyed(bytes(bent), count), (at, bent[at])


def test_keyed_check_returns_none_for_keyless_records_and_headers() -> None:
    sound = [PlainRecord(key=b"k", value=b"v", timestamp_ms=1) for _ in range(20)]
    for odd in (
        PlainRecord(key=None, value=b"v", timestamp_ms=1),
        PlainRecord(key=b"k", value=b"v", timestamp_ms=1, headers=(("h", b"1"),)),
        PlainRecord(key=b"k" * 9_000, value=b"v", timestamp_ms=1),
        PlainRecord(key=b"k", value=b"v", timestamp_ms=100_000_000),
    ):
        section = encode_batch([*sound, odd])[HEADER_BYTES:]
        assert is_sound(section, 21)
        assert check_keyed_records(section, 21) is None
