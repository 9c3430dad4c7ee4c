"""Each aggregate function against Spark's batch: any order of rows, cuts, undone micro-batches and restores."""

from __future__ import annotations

import math
import random
import tempfile
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F
from tests.longer import LONG
from tests.spark.runtime.aggregating_task import AggregatingTask

from headrace.spark.runtime.operators.aggregate import AggregateFunctions
from headrace.spark.runtime.operators.aggregate_states import initial_values, state_of
from headrace.spark.runtime.rows.row_schema import state_schema
from headrace.spark.streams_app import StreamsApp
from headrace.spark.topology.nodes import TASK_COLUMN, Aggregate, Buffer, BufferFunction

SCHEMA = "g string, x double, y double, f float, n bigint, m int, d decimal(12,3), s string, t timestamp, o boolean"
BASE = 1_700_000_000
NUMBERS = st.sampled_from([None, 0.0, -0.0, 1.0, 2.0, 3.5, -7.25, 1e6 + 0.5])
ODD = st.one_of(NUMBERS, NUMBERS, NUMBERS, st.sampled_from([math.nan, math.inf, -math.inf]))
ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "a", "b", "c", "d", ""]),
        ODD,
        NUMBERS,
        st.sampled_from([None, 0.5, math.nan, -2.0]),
        st.sampled_from([None, 0, 1, 2, -5, 2**63 - 1, -(2**63), 2**53 + 1]),
        st.integers(-3, 3) | st.none(),
        st.sampled_from([None, Decimal("0.001"), Decimal("-12.5"), Decimal("999999999.999"), Decimal(7)]),
        st.sampled_from([None, "", "a", "b", "ä", "zz"]),
        st.integers(0, 4).map(lambda second: BASE + second) | st.none(),
        st.sampled_from([None, True, False]),
    ),
    min_size=1,
    max_size=70,
)
INFINITE = [  # Spark's covariance of x and m: -inf in this order
    ("a", x, 1.0, None, 0, m, None, "", None, True) for x, m in ((0.0, 0), (-math.inf, 1))
]
CUTS = st.lists(st.tuples(st.integers(0, 25), st.sampled_from(["commit", "undo", "restore"])), max_size=6)
EXAMPLES = 300 if LONG else 8
SPREADS = {
    "stddev": "stddev(x)",
    "stddev_pop": "stddev_pop(m)",
    "stddev_samp": "stddev_samp(d)",
    "std": "std(n)",
    "variance": "variance(f)",
    "var_pop": "var_pop(y)",
    "var_samp": "var_samp(m) filter (where o)",
    "corr": "corr(y, m)",
    "covar_pop": "covar_pop(x, m)",
    "covar_samp": "covar_samp(m, d)",
    "filtered": "corr(y, m) filter (where o)",
    "rounded": "round(stddev(y), 3)",
    "skewness": "skewness(y)",
    "skewed": "skewness(d) filter (where m > 0)",
    "kurtosis": "kurtosis(y)",
    "tails": "kurtosis(m)",
    "odd_skewness": "skewness(x)",
    "product": "product(y)",
    "bits_and": "bit_and(n)",
    "bits_or": "bit_or(m) filter (where o)",
    "bits_xor": "bit_xor(n)",
    "regr_count": "regr_count(y, m)",
    "regr_avgx": "regr_avgx(y, m)",
    "regr_avgy": "regr_avgy(y, m)",
    "regr_sxx": "regr_sxx(y, m)",
    "regr_syy": "regr_syy(y, m)",
    "regr_sxy": "regr_sxy(y, m)",
    "regr_r2": "regr_r2(y, m)",
    "regr_slope": "regr_slope(y, m)",
    "regr_intercept": "regr_intercept(m, y)",
    "r2_back": "regr_r2(m, y)",
    "try_avg": "try_avg(m)",
    "try_sum": "try_sum(y)",
    **{f"about_{name}": f"approx_count_distinct({name})" for name in "xfnmdsto"},
    "about_few": "approx_count_distinct(n, 0.2) filter (where o)",
    "list": "collect_list(s)",
    "doubles": "collect_list(x)",
    "structs": "collect_list(struct(m, s))",
    "set": "collect_set(s)",
    "numbers": "collect_set(d) filter (where o)",
    "times": "array_agg(distinct t)",
}
# Equal to the last bit.
RANKS = {
    "median": "median(m)", "longs": "percentile(n, 0.37)", "nans": "percentile(x, array(0, 0.3, 0.9, 1))",
    "decimals": "percentile(d, 0.9) filter (where o)", "floats": "percentile_cont(0.6) within group (order by f desc)",
    "disc": "percentile_disc(0.25) within group (order by y)",
    "back": "percentile_disc(0.6) within group (order by n desc)",
    "mode": "mode(m, true)", "texts": "mode() within group (order by s desc)", "flags": "mode(o, true)",
    "when": "mode(t, true) filter (where m > 0)",
}  # fmt: skip
# (value, ordering, condition)
EXTREMES = [
    ("x", "m", ""), ("s", "t", ""), ("n", "s", ""), ("m", "x", ""), ("d", "f", ""), ("t", "d", ""), ("o", "n", ""),
    ("s", "o", ""), ("f", "t", "m > 0"), ("s", "m", "o"),
]  # fmt: skip


@pytest.fixture(scope="module")
def splits(spark: Any) -> dict[str, Any]:
    """The splits of both lists of calls, made once."""
    calls = {"spreads": {name: call_of(sql) for name, sql in (SPREADS | RANKS).items()}, "extremes": extremes()[0]}
    calls["distinct"] = {name: F.expr(sql) for name, sql in DISTINCT.items()}
    return {name: split_of(spark, found) for name, found in calls.items()}


DISTINCT = {
    "one": "count(distinct n)", "texts": "count(distinct s)", "doubles": "count(distinct x)",
    "floats": "count(distinct f)",
    "pairs": "count(distinct s, m)", "three": "count(distinct x, d, o)", "decimals": "count(distinct d)",
    "times": "count(distinct t) filter (where o)", "when": "count(distinct case when m > 0 then s end)",
    "both": "count(distinct m, s) filter (where x > 0)", "flags": "count(distinct o)",
    "ratio": "count(distinct s) / count(*)", "rows": "count(*)", "last": "max(t)", "spread": "stddev_pop(m)",
}  # fmt: skip


def call_of(sql: str) -> Any:
    """A call as a column. SQL has no `product`."""
    return F.product(sql[len("product(") : -1]) if sql.startswith("product(") else F.expr(sql)


def split_of(spark: Any, aggregates: dict[str, Any]) -> Any:
    app = StreamsApp("demo", spark=spark, bootstrap_servers="localhost:1")
    table = app.stream("in", schema=SCHEMA).groupBy("g")
    return table.agg(*(call.alias(name) for name, call in aggregates.items()))._aggregate.split


def aggregate_of(split: Any) -> Aggregate:
    return Aggregate(
        name="by-g",
        group_columns=split.group_columns,
        buffers=split.buffers,
        results=split.results,
        output_schema_json=split.output_schema_json,
        changelog_topic="changelog",
    )


def frame_of(spark: Any, rows: list[tuple[Any, ...]]) -> Any:
    typed = SCHEMA.replace("timestamp", "bigint")
    return spark.createDataFrame(rows, typed).withColumn("t", F.timestamp_seconds("t")).persist()


def played(frame: Any, split: Any, seed: int, cuts: Any, tables: int) -> dict[Any, dict[str, Any]]:
    """The rows of the split aggregate: Spark projects, a task runs them in another order, Spark evaluates results."""
    projected = [f"{sql} AS {name}" for name, sql in split.projection.key_sql + split.projection.input_sql]
    rows = frame.selectExpr(*projected).toArrow()
    rows = rows.append_column(TASK_COLUMN, pa.array([0] * rows.num_rows, pa.int32()))
    order = list(range(rows.num_rows))
    random.Random(seed).shuffle(order)
    aggregate = aggregate_of(split)
    with tempfile.TemporaryDirectory() as directory:
        task = AggregatingTask(Path(directory), aggregate)
        try:
            found = task.play(rows.take(order), cuts, tables=tables)
        finally:
            task.store.close()
    finished = pa.Table.from_pylist(found, AggregateFunctions(aggregate).finished_schema())
    results = frame.sparkSession.createDataFrame(finished).selectExpr(
        *(f"{sql} AS {name}" for name, sql in split.results)
    )
    return {row["g"]: row.asDict() for row in results.collect()}


def is_close(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, list) and isinstance(theirs, list):  # collected: in any order
        return sorted(map(repr, mine)) == sorted(map(repr, theirs))
    if isinstance(mine, float) and isinstance(theirs, float):
        return (math.isnan(mine) and math.isnan(theirs)) or math.isclose(mine, theirs, rel_tol=1e-9, abs_tol=1e-9)
    return bool(mine == theirs)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def is_infinite(value: Any) -> bool:
    return isinstance(value, float) and math.isinf(value)


@pytest.mark.spark
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@example(rows=INFINITE, seed=0, cuts=[], tables=1)
@given(rows=ROWS, seed=st.integers(0, 999), cuts=CUTS, tables=st.integers(1, 3))
def test_spreads_equal_a_spark_batch(spark: Any, splits: Any, rows: Any, seed: int, cuts: Any, tables: int) -> None:
    frame = frame_of(spark, rows)
    calls = {name: call_of(sql) for name, sql in (SPREADS | RANKS).items()}
    expected = frame.groupBy("g").agg(*(call.alias(name) for name, call in calls.items())).collect()
    found = played(frame, splits["spreads"], seed, cuts, tables)
    frame.unpersist()
    assert set(found) == {row["g"] for row in expected}
    for row in expected:
        mine = found[row["g"]]
        # With an infinite input Spark's covariance is NaN or infinite, depending on the order of the rows; ours is NaN.
        unlike = [name for name in SPREADS if not is_close(mine[name], row[name])]
        unlike = [
            name for name in unlike if not (name == "covar_pop" and is_nan(mine[name]) and is_infinite(row[name]))
        ]
        assert {name: (mine[name], row[name]) for name in unlike} == {}
        assert {name: (mine[name], row[name]) for name in RANKS if repr_of(mine[name]) != repr_of(row[name])} == {}


def repr_of(value: Any) -> str:
    """A value as text: NaN equals itself, and both zeros are one."""
    return repr(
        [one + 0.0 if isinstance(one, float) else one for one in (value if isinstance(value, list) else [value])]
    )


def extremes() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Calls; what Headrace's rule for ties makes of them in Spark's words; how many values have the extreme."""
    calls, rules, choices = {}, {}, {}
    for value, ordering, condition in EXTREMES:
        for function, struct in (("max_by", F.max), ("min_by", F.min)):
            name = f"{function}_{value}_{ordering}"
            where = f" filter (where {condition})" if condition else ""
            calls[name] = F.expr(f"{function}({value}, {ordering}){where}")
            kept = F.col(ordering).isNotNull() & (F.expr(condition) if condition else F.lit(True))
            rules[name] = struct(F.when(kept, F.struct(ordering, value))).getField(value)
            best = F.expr(f"{function[:3]}({ordering}){where}")
            choices[name] = F.when(best.isNull(), F.lit(0)).otherwise(F.count_if(kept))
    return calls, rules, choices


@pytest.mark.spark
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=ROWS, seed=st.integers(0, 999), cuts=CUTS, tables=st.integers(1, 3))
def test_extremes_equal_a_spark_batch_whatever_the_order(
    spark: Any, splits: Any, rows: Any, seed: int, cuts: Any, tables: int
) -> None:
    calls, rules, rivals = extremes()
    frame = frame_of(spark, rows)
    named = [
        (f"{name}_{kind}", call)
        for kind, calls in (("rule", rules), ("rivals", rivals))
        for name, call in calls.items()
    ]
    expected = frame.groupBy("g").agg(*(call.alias(name) for name, call in [*calls.items(), *named])).collect()
    found = played(frame, splits["extremes"], seed, cuts, tables)
    frame.unpersist()
    assert set(found) == {row["g"] for row in expected}
    for row in expected:
        mine = found[row["g"]]
        assert {name: mine[name] for name in calls if not is_close(mine[name], row[f"{name}_rule"])} == {}
        alone = [name for name in calls if row[f"{name}_rivals"] <= 1]  # nothing to choose from: Spark's own answer
        assert {name: mine[name] for name in alone if not is_close(mine[name], row[name])} == {}


@pytest.mark.spark
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows=ROWS, seed=st.integers(0, 999), cuts=CUTS, tables=st.integers(1, 3))
def test_distinct_counts_equal_a_spark_batch(
    spark: Any, splits: Any, rows: Any, seed: int, cuts: Any, tables: int
) -> None:
    frame = frame_of(spark, rows)
    calls = {name: F.expr(sql) for name, sql in DISTINCT.items()}
    expected = frame.groupBy("g").agg(*(call.alias(name) for name, call in calls.items())).collect()
    found = played(frame, splits["distinct"], seed, cuts, tables)
    frame.unpersist()
    assert set(found) == {row["g"] for row in expected}
    for row in expected:
        mine = found[row["g"]]
        assert {name: (mine[name], row[name]) for name in DISTINCT if not is_close(mine[name], row[name])} == {}


def of(function: BufferFunction, *kinds: str, result: str = '"double"') -> AggregateFunctions:
    more = tuple((f"i{at}", kind) for at, kind in enumerate(kinds) if at)
    buffer = Buffer(
        name="b0",
        function=function,
        input="i0",
        input_type=kinds[0],
        result_type=result,
        more_inputs=more,  # type: ignore[arg-type]
    )
    groups = (("g", '"string"'),)
    return AggregateFunctions(
        Aggregate(
            name="t", group_columns=groups, buffers=(buffer,), results=(), output_schema_json="", changelog_topic="c"
        )
    )


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_a_small_spread_around_a_large_mean_keeps_its_digits(pieces: int) -> None:
    """Sums of squares would have no digit left: the mean squared is 1e18, the variance about 0.08."""
    chance = random.Random(3)
    values = [1e9 + chance.random() for _ in range(5000)]
    exact = [Fraction(value) for value in values]
    mean = sum(exact) / len(exact)
    wanted = float(sum((value - mean) ** 2 for value in exact) / (len(exact) - 1))
    functions = of("var_samp", '"double"')
    parts = [
        functions.partial(pa.table({"g0": ["a"] * len(piece), "i0": piece}), by=("g0",))
        for piece in np.array_split(np.array(values), pieces)
    ]
    merged = functions.combine(pa.concat_tables(parts), by=("g0",))
    [found] = functions.finish(merged).column("b0").to_pylist()
    assert math.isclose(found, wanted, rel_tol=1e-6)


def test_a_null_value_wins_max_by_and_a_null_ordering_does_not_count() -> None:
    functions = of("max_by", '"string"', '"integer"', result='"string"')
    rows = pa.table(
        {"g0": ["a", "a", "a", "b"], "i0": ["x", None, "z", "q"], "i1": pa.array([1, 2, None, None], pa.int32())}
    )
    assert functions.finish(functions.partial(rows, by=("g0",))).to_pylist() == [
        {"g0": "a", "b0": None},
        {"g0": "b", "b0": None},
    ]


def test_groups_of_nan_and_both_zeros_are_one_group_for_all_functions() -> None:
    calls = (
        Buffer(name="b0", function="count", input=None, input_type=None, result_type='"long"'),
        Buffer(name="b1", function="var_pop", input="i0", input_type='"long"', result_type='"double"'),
    )
    functions = AggregateFunctions(
        Aggregate(
            name="t",
            group_columns=(("f", '"double"'), ("g", '"string"')),
            buffers=calls,
            results=(),
            output_schema_json="",
            changelog_topic="c",
        )
    )
    other_nan = np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0]
    rows = pa.table({"g0": [0.0, math.nan, -0.0, other_nan, None], "g1": [None] * 5, "i0": [1, 2, 3, 6, 9]})
    rows = rows.set_column(1, "g1", pa.nulls(5, pa.string()))
    found = functions.finish(functions.partial(rows, by=functions.group_names)).drop_columns(["g0", "g1"]).to_pylist()
    assert found == [{"b0": 2, "b1": 1.0}, {"b0": 2, "b1": 4.0}, {"b0": 1, "b1": 0.0}]


def test_every_stored_column_is_part_of_the_schema_and_has_a_beginning() -> None:
    """A column that the schema left out would be read as another program's."""
    for function in ("stddev_samp", "corr", "covar_pop", "max_by", "skewness", "kurtosis", "regr_slope", "bit_xor"):
        functions = of(function, '"double"', '"double"')
        [value] = state_schema(functions.aggregate).values
        assert value.type == " + ".join(str(column.type) for column in functions.state)
        assert len(initial_values(function)) == len(functions.state)
    assert state_schema(of("corr", '"double"', '"double"').aggregate).values[0].type.count("+") == 5


def test_sketches_of_other_types_or_registers_are_other_states() -> None:
    """The stored bytes would be read without an error, and count other hashes."""

    def schema(kind: str, bits: str) -> str:
        buffer = Buffer(
            name="b0",
            function="approx_count_distinct",
            input="i0",
            input_type=kind,
            result_type='"long"',
            argument=f"n, {bits}",
            parameter=bits,
        )
        functions = replace(of("count", kind).aggregate, buffers=(buffer,))
        return state_schema(functions).hash

    assert len({schema('"integer"', "9"), schema('"long"', "9"), schema('"long"', "10")}) == 3


def test_a_function_without_a_state_is_an_error() -> None:
    unknown = Buffer(name="b0", function="median", input="i0", input_type='"long"', result_type='"long"')  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="median"):
        state_of(unknown)
    assert initial_values("kept") == ()  # a role of another operator
