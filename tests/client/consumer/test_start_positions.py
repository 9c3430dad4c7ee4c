"""Positions that a consumer begins at, and offsets outside of the log."""

from __future__ import annotations

import pytest
from tests.client.consumer.consumed_records import T0, Make, read_all

from headrace.errors import BrokerError


def test_auto_offset_reset_and_committed_offsets(make: Make) -> None:
    latest = make(auto_offset_reset="latest")
    latest.assign([T0])
    assert latest.position(T0) == 100
    none = make(auto_offset_reset="none", group_id="begin")
    none.assign([T0])
    with pytest.raises(BrokerError) as raised:
        none.poll_records(1)
    assert raised.value.code == "no-offset"
    # All records are older than an hour: as with latest. Fifty-odd years ago everything lies ahead.
    for duration, expected in [("PT1H", 100), ("P40000D", 0)]:
        recent = make(auto_offset_reset=f"by_duration:{duration}")
        recent.assign([T0])
        assert recent.position(T0) == expected


def test_an_offset_that_is_not_there(make: Make) -> None:
    consumer = make()
    consumer.assign([T0])
    consumer.seek(T0, 5_000)
    assert read_all(consumer, 1)[0].offset == 0
    strict = make(auto_offset_reset="none")
    strict.assign([T0])
    strict.seek(T0, 5_000)
    with pytest.raises(BrokerError) as raised:
        read_all(strict, 1)
    assert raised.value.code == "offset-out-of-range"
