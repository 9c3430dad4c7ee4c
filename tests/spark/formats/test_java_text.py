"""Numbers as Java writes them."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import strategies as st
from pyspark.sql import functions as F
from tests.spark.formats.generated_values import generated

from headrace.spark import formats
from headrace.spark.formats.java_text import java_double

pytestmark = pytest.mark.spark


def test_doubles_read_back_the_same(spark):
    """Digit for digit they may differ: Java before 19 prints a digit too many now and then."""
    numbers = generated(st.floats(), 600)
    assert len(numbers) > 500
    frame = spark.createDataFrame([(number,) for number in numbers], "d double").coalesce(1)
    wanted = [row[0] for row in frame.select(F.to_json(F.struct("*"))).collect()]
    found = formats.encode_value_json(pa.record_batch({"d": pa.array(numbers, pa.float64())}), ["d"]).to_pylist()
    for mine, theirs in zip(found, wanted, strict=True):
        assert json.loads(mine) == json.loads(theirs)
        assert len(mine) <= len(theirs)


JAVA_DOUBLES = {
    1.0: "1.0",
    1e7: "1.0E7",
    9999999.5: "9999999.5",
    1e-3: "0.001",
    9.99e-4: "9.99E-4",
    -2.5e-9: "-2.5E-9",
    123456789.125: "1.23456789125E8",
    1e16: "1.0E16",
    1.5e300: "1.5E300",
    -0.0: "-0.0",
    5e-324: "5.0E-324",  # the shortest text that reads back; Java prints 4.9E-324
}


@pytest.mark.parametrize(("number", "text"), JAVA_DOUBLES.items())
def test_java_doubles(number, text):
    assert java_double(number) == text
    assert float(text) == number
