"""Warnings about unbounded state: the bytes of a row that they name."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headrace.spark.analysis.unbounded_state import estimated_row_bytes
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.join_operator import entry_names
from headrace.spark.runtime.rows.rows import encode_key, encode_rows

TEXT = "x" * 20
VALUES: dict[str, Any] = {
    '"boolean"': True,
    '"integer"': 7,
    '"long"': 7,
    '"double"': 0.5,
    '"string"': TEXT,
    '"date"': date(2026, 1, 1),
    '"timestamp"': datetime(2026, 1, 1, tzinfo=UTC),
    '"decimal(9,2)"': Decimal("1.25"),
}


@pytest.mark.parametrize(
    ("keys", "columns"),
    [
        pytest.param(['"long"'], ['"long"'], id="small"),
        pytest.param(['"string"'], list(VALUES), id="each-type"),
        pytest.param(['"long"', '"timestamp"'], ['"string"'] * 10, id="wide"),
    ],
)
def test_the_estimate_is_near_the_bytes_of_an_entry(keys: list[str], columns: list[str]) -> None:
    encoded = encode_key([pa.array([VALUES[kind]], arrow_type(kind)) for kind in keys])
    row = encode_rows([pa.array([VALUES[kind]], arrow_type(kind)) for kind in columns], b"abcd")
    name = entry_names(np.ones(1, np.uint8), encoded, np.zeros(1, np.int64), np.zeros(1, np.int64))
    taken = len(name[0].as_py()) + len(row[0].as_py())
    assert taken <= estimated_row_bytes([*keys, *columns]) <= 1.6 * taken


def test_a_window_counts_as_its_two_ends() -> None:
    window = '{"type":"struct","fields":[{"name":"start","type":"timestamp"},{"name":"end","type":"timestamp"}]}'
    assert estimated_row_bytes([window]) == estimated_row_bytes(['"timestamp"', '"timestamp"'])
