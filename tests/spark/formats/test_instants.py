"""Times in keys and values, in any zone and in any year."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from headrace.spark import formats

pytestmark = pytest.mark.spark


def test_keys_and_values_agree_on_times_whatever_the_zone():
    times = [
        dt.datetime.fromisoformat("2013-07-01T05:06:07.000001+00:00"),
        None,
        dt.datetime.fromisoformat("0005-01-01T00:00+00:00"),
        dt.datetime.fromisoformat("9999-12-31T23:59:59.999999+00:00"),
    ]
    for zone in ("UTC", "America/New_York", "Europe/Berlin"):
        batch = pa.record_batch({"t": pa.array(times, pa.timestamp("us", zone))})
        found = formats.encode_key(batch, ["t"]).to_pylist()
        assert found == [
            b'{"t":"2013-07-01T05:06:07.000001Z"}',
            b'{"t":null}',
            b'{"t":"0005-01-01T00:00:00.000000Z"}',
            b'{"t":"9999-12-31T23:59:59.999999Z"}',
        ]
        assert formats.encode_value_json(batch, ["t"]).to_pylist() == found
        assert formats.encode_key(batch.slice(0, 2), ["t"]).to_pylist() == found[:2]


def test_years_of_five_digits_and_before_the_first():
    far = pa.array([253_402_300_800_000_000, -62_198_755_200_000_000, None], pa.int64())
    batch = pa.record_batch({"t": far.cast(pa.timestamp("us", "UTC")), "n": far.cast(pa.timestamp("us"))})
    assert formats.encode_value_json(batch, ["t", "n"]).to_pylist() == [
        b'{"t":"+10000-01-01T00:00:00.000000Z","n":"+10000-01-01T00:00:00.000000"}',
        b'{"t":"-0001-01-01T00:00:00.000000Z","n":"-0001-01-01T00:00:00.000000"}',
        b'{"t":null,"n":null}',
    ]
