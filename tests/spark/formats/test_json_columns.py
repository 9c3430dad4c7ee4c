"""The compiled pass over JSON records against the slow reader of single records: what it is sure of is right."""

from __future__ import annotations

import json
import math
import random

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from headrace.spark.formats.json_columns import JsonColumns
from headrace.spark.formats.json_decoding import decode_json
from headrace.spark.formats.json_values import NotOfSchema, row_of

SCHEMA = (
    StructType()
    .add("a", LongType())
    .add("i", IntegerType())
    .add("h", ShortType())
    .add("d", DoubleType())
    .add("s", StringType())
    .add("b", BooleanType())
    .add("t", TimestampType())
    .add("dt", DateType())
)
NUMBERS = (
    "-0", "-0.0", "0e5", "1E+3", "1e-7", "01", "1.", ".5", "+1", "9223372036854775807", "-9223372036854775808",
    "9223372036854775808", "18446744073709551616", "2147483647", "2147483648", "-2147483648", "-2147483649", "32767",
    "32768", "-32768", "9007199254740993", "9007199254740992.5", "1e400", "1e-400", "0.1", "123456789012345678901e-10",
)  # fmt: skip


class Records:
    """Records of the schema, nearly right, from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self) -> bytes:
        pick = self._random
        named = {
            "a": self._number, "i": self._number, "h": self._number, "d": self._number, "s": self._text,
            "b": self._boolean, "t": self._instant, "dt": self._date, "other": self._anything,
        }  # fmt: skip
        names = pick.sample(list(named), pick.randint(0, 4))
        if pick.random() < 0.03 and names:
            names.append(names[0])
        fields = []
        for name in names:
            value = (named[name] if pick.random() < 0.98 else self._anything)()
            fields.append(f'{self._space()}"{name}"{self._space()}:{self._space()}{value}{self._space()}')
        text = "{" + self._space() + ",".join(fields) + "}" + self._space()
        record = text.encode("utf-8", "replace")
        return self._damaged(record) if pick.random() < 0.15 else record

    def _damaged(self, record: bytes) -> bytes:
        at, how = self._random.randrange(len(record)), self._random.randrange(3)
        other = bytes([self._random.choice(b'{}[]",:\\ 0-.eE\x00\xff')])
        return record[:at] + (b"" if how == 0 else other) + record[at + (how < 2) :]

    def _space(self) -> str:
        return self._random.choice(["", "", "", " ", "\n\t"])

    def _number(self) -> str:
        pick = self._random
        size = pick.choice([3, 3, 3, 9, 18, 19, 21])
        return pick.choice(
            [
                str(pick.randint(-(10**size), 10**size)),
                repr(pick.uniform(-1, 1) * 10.0 ** pick.randint(-30, 30)),
                f"{pick.randint(-500, 500)}.{pick.randint(0, 99):02}",
                pick.choice(NUMBERS),
            ]
        )

    def _text(self) -> str:
        drawn = "".join(self._random.choice("abc é☃😀" if self._random.random() < 0.9 else '"\\\n') for _ in range(4))
        return json.dumps(drawn, ensure_ascii=self._random.random() < 0.2)

    def _boolean(self) -> str:
        return self._random.choice(["true", "false"])

    def _date(self) -> str:
        pick = self._random
        year = pick.choice([0, 1, 1900, 1970, 2000, 2013, 2024, 9999])
        return f'"{year:04}-{pick.randint(0, 13):02}-{pick.randint(0, 32):02}"'

    def _instant(self) -> str:
        pick = self._random
        clock = f"{pick.randint(0, 24):02}:{pick.randint(0, 60):02}:{pick.randint(0, 60):02}"
        ends = pick.choice(["", ".1", ".123456", ".1234567", "."]) + pick.choice(["", "Z", "Z", "+01:00"])
        return f'{self._date()[:-1]}{pick.choice("T ")}{clock}{ends}"'

    def _anything(self) -> str:
        made = [
            self._number,
            self._text,
            self._date,
            self._boolean,
            lambda: "null",
            lambda: "{}",
            lambda: '[1,{"a":2}]',
        ]
        return self._random.choice(made)()


def expected(record: bytes) -> dict[str, object] | None:
    try:
        return row_of(record, SCHEMA, "UTC")
    except NotOfSchema:
        return None


def same(one: object, other: object) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return one == other


@pytest.mark.parametrize("seed", range(4))
def test_fast_reader_equals_the_single_record_reader(seed):
    records = [Records(seed * 100_000 + index).draw() for index in range(2_000)]
    batch, odd = JsonColumns(SCHEMA, "UTC").read(pa.array(records, pa.binary()), SCHEMA.names)
    table = pa.Table.from_batches([batch])
    at = SCHEMA.names.index("t")
    table = table.set_column(at, "t", table.column("t").cast(pa.int64()))
    at = SCHEMA.names.index("dt")
    rows = table.set_column(at, "dt", table.column("dt").cast(pa.int32())).to_pylist()
    for record, row, is_odd in zip(records, rows, odd.tolist(), strict=True):
        if not is_odd:
            wanted = expected(record)
            assert wanted is not None, record
            assert all(same(row[name], wanted[name]) for name in SCHEMA.names), (record, row, wanted)
    assert 0.2 < odd.mean() < 0.8  # both ways were taken


def test_usual_records_are_none_of_them_odd():
    records = [
        b'{"a": -12, "i": 7, "h": 3, "d": 1.25, "s": "gr\xc3\xbc\xc3\x9fe", "b": true}',
        b'{"t":"2013-01-01T05:06:07.5Z","dt":"2024-02-29","other":"a\\"\\u00e9","d":null,"a":1700000000000000000}',
        b"{}",
    ]
    batch, odd = JsonColumns(SCHEMA, "UTC").read(pa.array(records, pa.binary()), SCHEMA.names)
    assert not odd.any()
    assert batch.column(SCHEMA.names.index("a")).to_pylist() == [-12, 1_700_000_000_000_000_000, None]


def test_a_slice_of_a_column_and_its_nulls():
    records = pa.array([b'{"s":"zero"}', b'{"s":"one"}', None, b'{"s":"\xff"}', b'{"s":"four"}'], pa.binary()).slice(1)
    batch, odd = JsonColumns(SCHEMA, "UTC").read(records, ["s"])
    assert odd.tolist() == [False, True, True, False]
    assert batch.column(0).to_pylist() == ["one", None, None, "four"]


@pytest.mark.parametrize("wanted", [["s"], ["d", "s"], []])
def test_columns_left_out_change_nothing_about_bad_records(wanted):
    records = [Records(seed).draw() for seed in range(500)]
    values = pa.array(records, pa.binary())
    everything, bad = decode_json(values, SCHEMA.json(), "UTC")
    some, bad_of_some = decode_json(values, SCHEMA.json(), "UTC", wanted)
    assert bad_of_some == bad
    assert some.schema.names == wanted
    for name in wanted:
        assert some.column(name).equals(everything.column(name)), name


def test_nested_schemas_are_left_to_others():
    assert not JsonColumns.can_read(StructType().add("list", ArrayType(LongType())))
    assert JsonColumns.can_read(SCHEMA)
