"""Arrow batches of a consumer."""

from __future__ import annotations

import time
from typing import Any

from tests.client.consumer.consumed_records import T0, T1, Make


def test_arrow_batches_hold_everything(make: Make) -> None:
    consumer = make()
    consumer.assign([T0, T1])
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + 20
    while len(rows) < 200 and time.monotonic() < deadline:
        rows += consumer.poll().to_pylist()
    assert {(row["topic"], row["partition"], row["offset"]) for row in rows} == {
        ("t", number, offset) for number in range(2) for offset in range(100)
    }
    row = next(row for row in rows if row["offset"] == 7)
    assert (row["key"], row["value"], row["timestamp_type"]) == (b"k7", b"v7", 0)
    assert row["timestamp"].timestamp() == 7.0
    assert row["headers"] == [{"key": "h", "value": b"x"}]
    assert consumer.poll(0).num_rows == 0
    assert consumer.lag() == {T0: 0, T1: 0}
