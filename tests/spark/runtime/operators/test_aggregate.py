"""Aggregates cut at random into micro-batches give what Spark's own `groupBy().agg()` gives over the whole."""

import json
import math
import pickle
import random
import statistics
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.values import not_none

from headrace.errors import UserCodeError
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.aggregate_operator import GroupMerge
from headrace.spark.runtime.rows.row_schema import state_schema
from headrace.spark.runtime.rows.rows import encode_key
from headrace.spark.topology.nodes import TASK_COLUMN, Aggregate, Buffer

INPUTS = {
    "i0": ('"long"', lambda r: r.choice([None, r.randrange(-1000, 1000), 2**40])),
    "i1": ('"double"', lambda r: r.choice([None, math.nan, -0.0, float(r.randrange(-50, 50)), math.inf])),
    "i2": ('"decimal(10,2)"', lambda r: r.choice([None, Decimal(r.randrange(-9999, 9999)).scaleb(-2)])),
    "i3": ('"string"', lambda r: r.choice([None, "", "é", "z", "a" * r.randrange(1, 5)])),
    "i4": ('"integer"', lambda r: r.choice([None, r.randrange(-9, 9)])),
    "i5": ('"float"', lambda r: r.choice([None, math.nan, float(r.randrange(-50, 50))])),
    "i6": ('"boolean"', lambda r: r.choice([None, True, False])),
}
CALLS = [
    ("count", None), ("count", "i0"), ("sum", "i0"), ("min", "i0"), ("max", "i0"), ("avg", "i0"),
    ("sum", "i1"), ("min", "i1"), ("max", "i1"), ("avg", "i1"),
    ("sum", "i2"), ("min", "i2"), ("max", "i2"), ("avg", "i2"),
    ("min", "i3"), ("max", "i3"), ("count", "i3"),
    ("sum", "i4"), ("avg", "i4"), ("sum", "i5"), ("max", "i5"), ("min", "i6"), ("max", "i6"),
]  # fmt: skip
RESULTS = {
    ("sum", '"long"'): '"long"', ("sum", '"integer"'): '"long"', ("sum", '"double"'): '"double"',
    ("sum", '"float"'): '"double"', ("sum", '"decimal(10,2)"'): '"decimal(20,2)"',
    ("avg", '"decimal(10,2)"'): '"decimal(14,6)"',
}  # fmt: skip


def aggregate(calls, groups=(("g", '"string"'), ("f", '"double"'))):
    buffers = []
    for index, (function, column) in enumerate(calls):
        kind = INPUTS[column][0] if column else None
        default = {"count": '"long"', "avg": '"double"'}.get(function, kind)
        result = not_none(RESULTS.get((function, str(kind)), default))
        buffers.append(Buffer(name=f"b{index}", function=function, input=column, input_type=kind, result_type=result))
    return Aggregate(
        name="t", group_columns=groups, buffers=tuple(buffers), results=(), output_schema_json="", changelog_topic="c"
    )


def same(left, right):
    if isinstance(left, float) and isinstance(right, float):
        return (math.isnan(left) and math.isnan(right)) or left == right or math.isclose(left, right, rel_tol=1e-12)
    return left == right


def in_micro_batches(functions, table, cuts):
    """As the operator does it: partials per task, merged with what a store holds."""
    store: dict[bytes, bytes] = {}
    newest: dict[Any, Any] = {}
    for start, end in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        if start == end:
            continue
        partial = functions.partial(table.slice(start, end - start), by=(TASK_COLUMN, *functions.group_names))
        rows = partial.drop_columns([TASK_COLUMN])
        keys = encode_key([rows.column(name) for name in functions.group_names]).to_pylist()
        merger = GroupMerge(functions, rows, state_schema(functions.aggregate).fingerprint)
        old = pa.array([store.get(key) for key in keys], pa.binary())
        store |= dict(zip(keys, merger(old).to_pylist(), strict=True))
        newest |= dict(zip(keys, functions.finish(merger.merged).to_pylist(), strict=True))
    return list(newest.values())


@pytest.mark.spark
def test_random_cuts_equal_a_spark_batch(spark):
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    chance = random.Random(7)
    functions = pickle.loads(pickle.dumps(AggregateFunctions(aggregate(CALLS))))
    names = ["g0", "g1", *INPUTS]
    types = ['"string"', '"double"', *[kind for kind, _ in INPUTS.values()]]
    rows = [
        [chance.choice([None, "EWR", "JFK", ""]), chance.choice([None, 0.0, -0.0, math.nan, 1.5])]
        + [make(chance) for _, make in INPUTS.values()]
        for _ in range(600)
    ]
    fields = [
        {"name": n, "type": json.loads(t), "nullable": True, "metadata": {}} for n, t in zip(names, types, strict=True)
    ]
    frame = spark.createDataFrame(rows, StructType.fromJson({"type": "struct", "fields": fields}))
    wanted = frame.groupBy("g0", "g1").agg(
        *[getattr(F, call)(column or F.lit(1)).alias(f"b{index}") for index, (call, column) in enumerate(CALLS)]
    )
    expected = {repr((row["g0"], row["g1"])): row.asDict() for row in wanted.collect()}
    columns = {
        n: pa.array([row[i] for row in rows], arrow_type(t)) for i, (n, t) in enumerate(zip(names, types, strict=True))
    }
    table = pa.table(columns).append_column(TASK_COLUMN, pa.array([3] * len(rows), pa.int32()))
    for _ in range(12):
        cuts = sorted(chance.randrange(len(rows) + 1) for _ in range(chance.randrange(6)))
        found = in_micro_batches(functions, table, cuts)
        assert len(found) == len(expected)
        for row in found:
            other = expected[repr((row["g0"], row["g1"]))]
            differing = {
                name: (row[name], other[name]) for name in row if not same(row[name], other[name]) and name[0] == "b"
            }
            assert not differing, cuts
    assert functions.finish(functions.partial(table, by=functions.group_names)).schema == functions.finished_schema()


def test_a_bigint_sum_that_overflows_is_an_error():
    functions = AggregateFunctions(aggregate([("sum", "i0")], groups=(("g", '"string"'),)))
    table = pa.table({"g0": ["a", "a"], "i0": [2**62, 2**62]})
    with pytest.raises(UserCodeError) as raised:
        functions.partial(table, by=("g0",))
    assert raised.value.code == "arithmetic-overflow"


def test_large_sums_that_fit_are_exact():
    functions = AggregateFunctions(aggregate([("sum", "i0")], groups=(("g", '"string"'),)))
    table = pa.table({"g0": ["a", "a", "a"], "i0": [2**62, 2**62, -(2**62) - 1]})
    assert functions.partial(table, by=("g0",)).column("b0").to_pylist() == [2**62 - 1]


def of_decimals(function, kind, result):
    buffer = Buffer(name="b0", function=function, input="i0", input_type=f'"{kind}"', result_type=f'"{result}"')
    groups = (("g", '"string"'),)
    return AggregateFunctions(
        Aggregate(
            name="t", group_columns=groups, buffers=(buffer,), results=(), output_schema_json="", changelog_topic="c"
        )
    )


@pytest.mark.parametrize(
    ("function", "kind", "result", "values"),
    [
        ("sum", "decimal(38,0)", "decimal(38,0)", [Decimal("9" * 38)] * 2),  # Arrow's own sum wraps around
        ("avg", "decimal(38,18)", "decimal(38,22)", [Decimal("1" * 20)]),  # no room for the result's four more digits
    ],
)
def test_decimals_that_leave_the_range_are_an_error(function, kind, result, values):
    functions = of_decimals(function, kind, result)
    table = pa.table({"g0": ["a"] * len(values), "i0": pa.array(values, arrow_type(f'"{kind}"'))})
    with pytest.raises(UserCodeError) as raised:
        functions.finish(functions.partial(table, by=("g0",)))
    assert raised.value.code == "arithmetic-overflow"


def test_decimals_at_the_edge_of_the_range_are_exact():
    functions = of_decimals("sum", "decimal(38,2)", "decimal(38,2)")
    most = Decimal("9" * 36 + ".99")
    table = pa.table({"g0": ["a"] * 3, "i0": pa.array([most, most, most.copy_negate()], pa.decimal128(38, 2))})
    assert functions.finish(functions.partial(table, by=("g0",))).column("b0").to_pylist() == [most]


def test_partial_results_of_several_columns_stay_with_their_group():
    """Arrow returns groups in another order than that of their first rows, where keys repeat within 1,024 rows."""
    newest = Buffer(
        name="b0",
        function="max_by",
        input="i0",
        input_type='"long"',
        result_type='"long"',
        more_inputs=(("i0", '"long"'),),
    )
    spread = Buffer(name="b1", function="var_pop", input="i0", input_type='"long"', result_type='"double"')
    groups = (("g", '"string"'), ("n", '"long"'))
    functions = AggregateFunctions(
        Aggregate(
            name="t",
            group_columns=groups,
            buffers=(newest, spread),
            results=(),
            output_schema_json="",
            changelog_topic="c",
        )
    )
    chance = random.Random(1)
    keys = [chance.randrange(2_000) for _ in range(5_000)]
    rows = pa.table({"g0": [str(key) for key in keys], "g1": keys, "i0": range(len(keys))})
    found = functions.finish(functions.partial(rows, by=("g0", "g1"))).to_pylist()
    values: dict[int, list[int]] = {}
    for value, key in enumerate(keys):
        values.setdefault(key, []).append(value)
    assert [row["g1"] for row in found] == list(values)
    assert {row["g1"]: row["b0"] for row in found} == {key: max(numbers) for key, numbers in values.items()}
    for row in found:
        assert math.isclose(row["b1"], statistics.pvariance(values[row["g1"]]), abs_tol=1e-9)
