"""Values of state variables as rows: what comes back is what was stored, and wrong types are refused as by Spark."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.errors import PySparkTypeError, PySparkValueError

from headrace.spark.runtime.stores.state_rows import StateRows

COLUMNS = (("n", '"long"'), ("text", '"string"'), ("day", '"date"'), ("paid", '"decimal(10,2)"'))
FINGERPRINT = b"01234567"
ROWS = st.tuples(
    st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.none() | st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    st.none() | st.decimals(-9999, 9999, places=2),
)


@given(rows=st.lists(ROWS, max_size=6))
def test_rows_come_back_as_they_were_stored(rows: list[tuple[Any, ...]]) -> None:
    kept = StateRows(COLUMNS, FINGERPRINT)
    internal = [kept.checked(row) for row in rows]
    assert [kept.values(row) for row in kept.decode(kept.encode(internal))] == rows


@given(one=ROWS, other=ROWS)
def test_keys_are_equal_only_for_equal_rows(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    kept = StateRows(COLUMNS)
    keys = [kept.encode_key(kept.checked(row)) for row in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)


def test_times_of_expiry_are_kept_behind_the_columns() -> None:
    kept = StateRows((("n", '"long"'),), FINGERPRINT, expires=True)
    assert kept.decode(kept.encode([(1, 99), (None, 100)])) == [(1, 99), (None, 100)]


@pytest.mark.parametrize(
    ("value", "error"),
    [
        pytest.param(("1", None, None, None), PySparkTypeError, id="text-for-a-number"),
        pytest.param((1, None, None), PySparkValueError, id="too-few-columns"),
        pytest.param((1, None, None, Decimal(10**9)), PySparkValueError, id="too-large-a-decimal"),
        pytest.param("1234", (TypeError, PySparkTypeError, PySparkValueError), id="text-for-a-row"),
    ],
)
def test_wrong_types_are_refused(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        StateRows(COLUMNS).checked(value)


def test_decimals_are_rounded_half_up_as_by_spark() -> None:
    kept = StateRows(COLUMNS)
    assert kept.checked((1, None, None, Decimal("2.345")))[3] == Decimal("2.35")


def test_scalars_of_numpy_and_pandas_are_plain_values() -> None:
    kept = StateRows((("n", '"long"'), ("at", '"timestamp_ntz"')))
    plain = kept.checked((np.int64(7), pd.Timestamp("2026-01-01 10:00")))
    assert kept.values(plain) == (7, datetime.fromisoformat("2026-01-01T10:00"))
