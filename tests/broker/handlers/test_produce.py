"""The bytes around the one batch of a Produce request."""

from __future__ import annotations

import pytest

from headrace.broker.handlers.produce import sole_batch
from headrace.broker.logs.partition_logs import AppendRefused
from headrace.protocol.error_codes import ErrorCode
from headrace.protocol.record_batches import PlainRecord, encode_batch


def records(count: int) -> list[PlainRecord]:
    return [PlainRecord(value=b"v", timestamp_ms=1) for _ in range(count)]


ONE = encode_batch(records(2))


def test_a_batch_alone_and_one_with_a_rest_behind_it() -> None:
    assert sole_batch(ONE, 13) is ONE
    for rest in (b"\0", ONE[:-1], ONE[:16]):
        assert sole_batch(ONE + rest, 13) == ONE


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (None, "invalid_record"),
        (b"", "invalid_record"),
        (ONE[:11], "invalid_record"),
        (ONE[:16], "invalid_record"),
        (ONE[:-1], "invalid_record"),
        (ONE + ONE, "invalid_record"),
        (bytes(61), "corrupt_message"),
        (ONE[:16] + b"\x03" + ONE[17:], "corrupt_message"),
        (ONE[:16] + b"\x01" + ONE[17:], "invalid_record"),
        (b"\0" * 7 + b"\x05" + ONE[8:], "invalid_record"),
        (ONE + bytes(20), "corrupt_message"),
    ],
)
def test_what_is_not_one_batch(data: bytes | None, code: str) -> None:
    with pytest.raises(AppendRefused) as refused:
        sole_batch(data, 13)
    assert refused.value.code is ErrorCode[code]


def test_zstd_came_with_version_7() -> None:
    batch = encode_batch(records(1), compression="zstd")
    assert sole_batch(batch, 7) is batch
    with pytest.raises(AppendRefused) as refused:
        sole_batch(batch, 6)
    assert refused.value.code is ErrorCode.unsupported_compression_type
