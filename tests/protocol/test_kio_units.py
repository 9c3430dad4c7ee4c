"""Durations, timestamps and error codes as plain values."""

from __future__ import annotations

import pytest

from headrace.protocol.error_codes import ErrorCode, describe, is_retriable, kafka_name
from headrace.protocol.kio_units import from_ms, from_ms_i64, timestamp_from_ms, timestamp_to_ms, to_ms


@pytest.mark.parametrize("duration_ms", [0, 1, -1, 45_000, 2**31 - 1, -(2**31)])
def test_durations_survive(duration_ms: int) -> None:
    assert to_ms(from_ms(duration_ms)) == duration_ms
    assert to_ms(from_ms_i64(duration_ms)) == duration_ms


def test_a_duration_beyond_32_bits_is_refused() -> None:
    with pytest.raises(TypeError):
        from_ms(2**31)


@pytest.mark.parametrize("timestamp_ms", [-1, 0, 1, 1_700_000_000_123])
def test_timestamps_survive(timestamp_ms: int) -> None:
    assert timestamp_to_ms(timestamp_from_ms(timestamp_ms)) == timestamp_ms


def test_error_codes_have_kafkas_names() -> None:
    assert kafka_name(ErrorCode.unknown_topic_or_partition) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert describe(ErrorCode.not_coordinator).startswith("NOT_COORDINATOR: ")
    assert is_retriable(ErrorCode.not_coordinator)
    assert not is_retriable(ErrorCode.fenced_member_epoch)
