"""How a grouped aggregate splits: grouping values and inputs, mergeable buffers, results over the finished buffers.

Read from the `Aggregate` node of Spark's analysed plan. Each aggregate function in it becomes a `Buffer`, the
expressions around it become SQL over `g0.. b0..`. What cannot be taken apart without doubt is refused, and the split
is checked against Spark: both halves must have the types that the whole has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType, TimestampType, _parse_datatype_json_string

from headrace.errors import TopologyError
from headrace.spark.analysis.aggregate_parameters import parameter_of, sketch_size
from headrace.spark.analysis.canonical_expressions import CanonicalExpressions
from headrace.spark.analysis.plan_reader import columns_read, leaf_columns, only_projects
from headrace.spark.frames import empty_frame, quoted
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    expression_id,
    is_instance,
    parse_expression,
    sequence,
    unresolved_column,
    with_children,
)
from headrace.spark.topology.nodes import (
    COLLECTING,
    SESSION_END_COLUMN,
    VALUE_FUNCTIONS,
    WINDOW_COLUMN,
    Buffer,
    BufferFunction,
    ProjectForGroup,
)
from headrace.spark.unsupported import refusal

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_FUNCTIONS: dict[str, BufferFunction] = {
    "Count": "count",
    "Sum": "sum",
    "Average": "avg",
    "Min": "min",
    "Max": "max",
    "StddevPop": "stddev_pop",
    "StddevSamp": "stddev_samp",
    "VariancePop": "var_pop",
    "VarianceSamp": "var_samp",
    "Corr": "corr",
    "CovPopulation": "covar_pop",
    "CovSample": "covar_samp",
    "MaxBy": "max_by",
    "MinBy": "min_by",
    "HyperLogLogPlusPlus": "approx_count_distinct",
    "BitAndAgg": "bit_and",
    "BitOrAgg": "bit_or",
    "BitXorAgg": "bit_xor",
    "Product": "product",
    "Skewness": "skewness",
    "Kurtosis": "kurtosis",
    "RegrReplacement": "regr_sxx",  # regr_syy as well: the sum of squared distances of one of the columns
    "RegrSXY": "regr_sxy",
    "RegrR2": "regr_r2",
    "RegrSlope": "regr_slope",
    "RegrIntercept": "regr_intercept",
    "CollectList": "collect_list",
    "CollectSet": "collect_set",
    "Percentile": "percentile",
    "PercentileDisc": "percentile",
    "ApproximatePercentile": "percentile_approx",
    "Mode": "mode",
}
# The function that a class is with DISTINCT; any other class is refused with it.
_OF_DISTINCT: dict[str, BufferFunction] = {
    "Count": "count_distinct",
    "CollectList": "collect_set",
    "CollectSet": "collect_set",
}
_OVER_DOUBLES = frozenset(
    (
        *("stddev_pop", "stddev_samp", "var_pop", "var_samp", "corr", "covar_pop", "covar_samp"),
        *("skewness", "kurtosis", "product", "regr_sxx", "regr_sxy", "regr_r2", "regr_slope", "regr_intercept"),
    )
)
_BITS = frozenset({"bit_and", "bit_or", "bit_xor"})
_OVER_NUMBERS = _OVER_DOUBLES | {"sum", "avg"}
_BY_ORDER = frozenset({"max_by", "min_by"})
# Functions whose result depends on the order or equality of texts.
_COMPARED = _BY_ORDER | {"min", "max", "count_distinct", "approx_count_distinct", "mode"} | COLLECTING
_INTEGERS = frozenset({'"byte"', '"short"', '"integer"', '"long"'})
_NUMBERS = _INTEGERS | {'"float"', '"double"'}
_TIMES = frozenset({'"date"', '"timestamp"', '"timestamp_ntz"'})
_PLAIN = frozenset({'"string"', '"boolean"', '"date"', '"timestamp"', '"timestamp_ntz"', '"binary"'})
_SUPPORTED = (
    *("count", "count_distinct", "approx_count_distinct", "count_if", "sum", "avg", "min", "max"),
    *("bool_and", "bool_or", "max_by", "min_by"),
    *("stddev", "stddev_pop", "stddev_samp", "variance", "var_pop", "var_samp", "corr", "covar_pop", "covar_samp"),
    *("skewness", "kurtosis", "regr_count", "regr_avgx", "regr_avgy", "regr_sxx", "regr_sxy", "regr_syy", "regr_r2"),
    *("collect_list", "collect_set", "array_agg", "percentile", "median", "percentile_cont", "percentile_disc", "mode"),
    *("percentile_approx", "approx_percentile"),
    *("regr_slope", "regr_intercept", "product", "bit_and", "bit_or", "bit_xor", "try_sum", "try_avg"),
)
_WORKING = f"{', '.join(_SUPPORTED[:-1])} and {_SUPPORTED[-1]} work now"
# Functions that are refused → why, and what serves instead.
_EVERY_VALUE = "needs every value of the group; a state of bounded size does not hold them"
_BY_ARRIVAL = "depends on the order in which rows arrive, so the same rows have several results"
_SKETCH = "returns a sketch as bytes, which only Spark reads"
_DISTINCT = "groupBy that column as well and count: there is one row per value"
_BY_TIME = "F.min_by(x, t) and F.max_by(x, t) are the first and the last x by a time t"
_APPROXIMATE = "F.approx_count_distinct(x) and F.count_distinct(x) work now"
_REFUSED = {
    "sum_distinct": (_EVERY_VALUE, "groupBy that column as well: the reader adds up the rows per group"),
    "avg_distinct": (_EVERY_VALUE, "groupBy that column as well: the reader averages the rows per group"),
    **dict.fromkeys(("first", "last", "first_value", "last_value"), (_BY_ARRIVAL, _BY_TIME)),
    "any_value": (_BY_ARRIVAL, "F.min or F.max of the column gives one of its values"),
    **dict.fromkeys(
        ("listagg", "string_agg"), (_BY_ARRIVAL, "F.array_join(F.sort_array(F.collect_list(x)), ', ') works now")
    ),
    "histogram_numeric": (_BY_ARRIVAL, "count per bucket: groupBy(F.floor(F.col('x') / 10)).count()"),
    "try_sum": (
        "of integers or decimals depends on the order in which rows arrive: it is null once a running sum overflows",
        "F.sum works now, and F.try_sum of doubles; cast to a longer type where it could overflow",
    ),
    "try_avg": (
        "of decimals depends on the order in which rows arrive: it is null once a running sum overflows",
        "F.avg works now, and F.try_avg of integers and doubles",
    ),
    "count_min_sketch": (_SKETCH, "groupBy that column as well and count"),
    **dict.fromkeys(("hll_sketch_agg", "hll_union_agg"), (_SKETCH, _APPROXIMATE)),
    **dict.fromkeys(("bitmap_construct_agg", "bitmap_or_agg", "bitmap_and_agg"), (_SKETCH, _APPROXIMATE)),
}
_TWO_STEPS = "compute arguments with withColumn before groupBy, and results with withColumn behind agg"


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregateSplit:
    """The three parts of a split aggregate: the projection in front, the mergeable buffers, the results over them."""

    projection: ProjectForGroup
    group_columns: tuple[tuple[str, str], ...]
    buffers: tuple[Buffer, ...]
    results: tuple[tuple[str, str], ...]
    output_schema_json: str
    bare: bool
    source_keys: tuple[str | None, ...]  # for each grouping value the leaf's column that it is, unchanged


def aggregate_limits() -> tuple[tuple[str, ...], dict[str, tuple[str, str]]]:
    """Return the supported functions, and reason and alternative of each refused one."""
    return _SUPPORTED, dict(_REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowGroup:
    """The grouping column that is a window, `WINDOW_COLUMN`: it is grouped by its start."""

    position: int  # among the grouping columns
    expression: str  # canonical text of the start
    sql: str  # the window as users see it, over the grouping value


def split_aggregate(
    before: DataFrame, aggregated: DataFrame, where: str, window: WindowGroup | None = None
) -> AggregateSplit:
    """Return the split of `aggregated`, which is `before.groupBy(..).agg(..)`.

    Args:
        before: The rows that are grouped.
        aggregated: Their aggregate.
        where: "file:line" of the user's call.
        window: The grouping column that is a window, if one is.

    Raises:
        TopologyError: aggregate-not-mergeable, not-supported-here.
    """
    return _Splitter(before, where, window).split(aggregated)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """An argument of an aggregate function."""

    sql: str  # over the columns before the aggregate
    kind: str  # Spark type as JSON
    canonical: str
    expression: JavaObject | None = None  # None: put together here
    name: str = ""
    is_collated: bool = False


class _Splitter:
    def __init__(self, before: DataFrame, where: str, window: WindowGroup | None) -> None:
        self._before = before
        self._where = where
        self._window = window
        self._spark = before.sparkSession
        self._canonical = CanonicalExpressions(before)
        self._leaf_columns = leaf_columns(before)
        self._groups: list[JavaObject] = []
        self._inputs: dict[str, _Input] = {}  # by their SQL
        self._buffers: dict[tuple[str, tuple[str, ...]], Buffer] = {}  # by function, inputs' SQL and parameter

    def split(self, aggregated: DataFrame) -> AggregateSplit:
        """Split the analysed plan of `aggregated`, and check the result against Spark."""
        plan = analysed(aggregated)
        if class_of(plan) != "Aggregate":
            raise self._refuse("not-supported-here", f"{class_of(plan)} stands around this aggregate", _TWO_STEPS)
        # The child of the Aggregate must be the very rows that were grouped: anything in between, such as an Expand,
        # makes other rows.
        if not plan.child().equals(analysed(self._before)):
            raise self._refuse(
                "not-supported-here",
                "this kind of window in groupBy comes in a later release",
                "F.window(..) works now, and F.date_trunc('hour', 'time') gives a row per hour",
            )
        self._groups = sequence(plan.groupingExpressions())
        self._check_no_python_function()
        outputs = sequence(plan.aggregateExpressions())
        if len(outputs) < len(self._groups) or not all(
            self._unaliased(out).semanticEquals(group) for out, group in zip(outputs, self._groups, strict=False)
        ):
            raise self._refuse(
                "not-supported-here",
                "the grouping columns are not part of the result",
                "set spark.sql.retainGroupColumns to true",
            )
        group_columns = tuple(
            (str(out.name()), '"timestamp"' if self._is_window(index) else str(group.dataType().json()))
            for index, (out, group) in enumerate(zip(outputs, self._groups, strict=False))
        )
        self._check_group_types(group_columns)
        try:
            # 1. A first walk notes all buffers. Their names follow from all of them together, so results are written in
            #    a second one.
            for out in outputs:
                self._rebuilt(self._unaliased(out))  # notes the buffers; their names follow from all of them
            self._order_by_canonical_text()
            # 2. The same walk with final names.
            results = tuple((str(out.name()), str(self._rebuilt(self._unaliased(out)).sql())) for out in outputs)
        except Py4JError as error:
            raise self._refuse(
                "not-supported-here", "this expression over aggregates cannot be taken apart", _TWO_STEPS
            ) from error
        names = [f"g{i}" for i in range(len(self._groups))] + [buffer.name for buffer in self._buffers.values()]
        split = AggregateSplit(
            projection=self._projection(group_columns),
            group_columns=group_columns,
            buffers=tuple(self._buffers.values()),
            results=results,
            output_schema_json=aggregated.schema.json(),
            bare=all(sql in names or (self._window is not None and sql == self._window.sql) for _, sql in results),
            source_keys=tuple(map(self._leaf_column, self._groups)),
        )
        # 3. Both halves are analysed again from their SQL text. Types are the check that the text means the same.
        self._check_against_spark(split, aggregated.schema)
        return split

    def _projection(self, group_columns: tuple[tuple[str, str], ...]) -> ProjectForGroup:
        key_sql = tuple((f"g{i}", self._group_sql(i)) for i in range(len(self._groups)))
        inputs = self._inputs.values()
        input_sql = tuple((found.name, found.sql) for found in inputs)
        columns = tuple((f"g{i}", kind) for i, (_, kind) in enumerate(group_columns))
        columns += tuple((found.name, found.kind) for found in inputs)
        origins = [(f"g{i}", self._leaf_column(group)) for i, group in enumerate(self._groups)]
        origins += [(found.name, self._leaf_column(found.expression)) for found in inputs]
        expressions = [self._group_text(i) for i in range(len(self._groups))] + [found.canonical for found in inputs]
        source_columns = tuple((name, origin) for name, origin in origins if origin is not None)
        bare = only_projects(self._before) and len(source_columns) == len(origins)
        return ProjectForGroup(
            key_sql=key_sql,
            input_sql=input_sql,
            columns=columns,
            bare=bare,
            source_columns=source_columns if bare else (),
            expressions=tuple(expressions),
        )

    def _is_window(self, index: int) -> bool:
        return self._window is not None and self._window.position == index

    def _group_sql(self, index: int) -> str:
        """Return the SQL of a grouping value over the columns before the aggregate."""
        return f"`{WINDOW_COLUMN}`.`start`" if self._is_window(index) else str(self._groups[index].sql())

    def _group_text(self, index: int) -> str:
        """Return the canonical text of a grouping value."""
        if self._window is not None and self._is_window(index):
            return self._window.expression
        return self._canonical.text(self._groups[index])

    def _order_by_canonical_text(self) -> None:
        """Name inputs and buffers in the order of their canonical texts, which is the same wherever the program writes
        them.
        """
        ordered = sorted(self._inputs.values(), key=lambda found: (found.canonical, found.kind))
        names = {found.name: f"i{index}" for index, found in enumerate(ordered)}
        self._inputs = {found.sql: replace(found, name=names[found.name]) for found in ordered}
        buffers = sorted(self._buffers.items(), key=lambda pair: (pair[1].function, pair[1].argument))
        self._buffers = {
            key: replace(
                buffer,
                name=f"b{index}",
                input=None if buffer.input is None else names[buffer.input],
                more_inputs=tuple((names[name], kind) for name, kind in buffer.more_inputs),
            )
            for index, (key, buffer) in enumerate(buffers)
        }

    def _rebuilt(self, expression: JavaObject) -> JavaObject:
        """`expression` with aggregates and grouping values replaced by the columns that will hold them."""
        for index, group in enumerate(self._groups):
            if expression.semanticEquals(group):
                if self._window is not None and self._is_window(index):
                    return parse_expression(self._spark, self._window.sql)
                return self._column(f"g{index}")
        if class_of(expression) == "AggregateExpression":
            return self._column(self._buffer(expression).name)
        # Spark keeps such an expression for its text; what it computes is its replacement.
        if self._is(expression, "RuntimeReplaceable"):
            return self._rebuilt(expression.replacement())
        children = sequence(expression.children())
        if not children:
            return expression
        return with_children(self._spark, expression, [self._rebuilt(child) for child in children])

    def _buffer(self, expression: JavaObject) -> Buffer:
        function = expression.aggregateFunction()
        name = str(function.prettyName())
        if expression.isDistinct() and class_of(function) not in _OF_DISTINCT:
            raise self._not_mergeable(f"{name}_distinct", expression)
        if self._is(function, "RuntimeReplaceable"):  # count_if, bool_and, bool_or stand for count, min, max
            function = function.replacement()
        kind = (_OF_DISTINCT if expression.isDistinct() else _FUNCTIONS).get(class_of(function))
        if kind is None or (name.startswith("try_") and not _never_overflows(kind, function)):
            raise self._not_mergeable(name, expression)
        inputs = self._inputs_of(kind, function)
        parameter = parameter_of(kind, function, name, self._where)
        if expression.filter().isDefined():
            if kind in COLLECTING and class_of(sequence(function.children())[0]) == "CreateNamedStruct":
                raise self._refuse(
                    "not-supported-here",
                    f"{name} of structs takes no FILTER",
                    "filter the rows before groupBy, or collect one column",
                )
            inputs = self._filtered(kind, inputs, expression.filter().get())
        return self._remember(kind, inputs, str(function.dataType().json()), name, parameter)

    def _inputs_of(self, kind: str, function: JavaObject) -> list[_Input]:
        children = sequence(function.children())
        if kind == "count":
            return self._counted(children)
        if kind in COLLECTING and class_of(children[0]) == "CreateNamedStruct":
            return [self._input(child) for child in sequence(children[0].valExprs())]
        if kind in VALUE_FUNCTIONS | {"percentile_approx"}:
            return [self._input(children[0])]  # the others are constants
        if kind in _OVER_DOUBLES:
            children = [_without_exact_cast(child) for child in children]
        return [self._input(child) for child in children]

    def _counted(self, children: list[JavaObject]) -> list[_Input]:
        if all(not child.nullable() for child in children):
            # `count(x)` of a column that is never null counts rows, and needs no input.
            return []  # count(*), count(1): of rows
        if len(children) > 1:
            present = " AND ".join(f"({child.sql()} IS NOT NULL)" for child in children)
            canonical = ", ".join(self._canonical.text(child) for child in children)
            return [_Input(sql=f"CASE WHEN {present} THEN 1 END", kind='"integer"', canonical=canonical)]
        [child] = children
        if not _is_stored(str(child.dataType().json())):  # only whether there is a value matters
            present = f"CASE WHEN ({child.sql()}) IS NOT NULL THEN 1 END"
            return [_Input(sql=present, kind='"integer"', canonical=self._canonical.text(child))]
        return [self._input(child)]

    def _input(self, expression: JavaObject) -> _Input:
        return _Input(
            sql=str(expression.sql()),
            kind=str(expression.dataType().json()),
            canonical=self._canonical.text(expression),
            expression=expression,
            is_collated=_is_collated(expression),
        )

    def _filtered(self, kind: str, inputs: list[_Input], condition: JavaObject) -> list[_Input]:
        """Inputs that are null where the condition does not hold: all functions skip null in the input chosen here."""
        # All functions skip null in this input, so a FILTER needs no support of its own in any state.
        at = 1 if kind in _BY_ORDER else 0  # max_by keeps a null value and skips a null in the ordering column
        given = inputs[at] if inputs else None
        filtered = _Input(
            sql=f"CASE WHEN {condition.sql()} THEN {given.sql if given else '1'} END",
            kind=given.kind if given else '"integer"',
            canonical=f"{given.canonical if given else '*'} FILTER {self._canonical.text(condition)}",
            is_collated=given is not None and given.is_collated,
        )
        return [*inputs[:at], filtered, *inputs[at + 1 :]]

    def _remember(self, kind: BufferFunction, inputs: list[_Input], result: str, shown: str, parameter: str) -> Buffer:
        for given in inputs:
            self._check_input(kind, given, shown)
        # The size of a sketch is part of what is stored. What is asked of the values of a group is not.
        stored = [size] if (size := sketch_size(kind, parameter)) else []
        # `avg(x)` written twice is one buffer.
        key = (kind, (*(given.sql for given in inputs), parameter))
        known = self._buffers.get(key)
        if known is not None:
            return known
        inputs = [self._inputs.setdefault(given.sql, replace(given, name=f"i{len(self._inputs)}")) for given in inputs]
        buffer = Buffer(
            name=f"b{len(self._buffers)}",
            function=kind,
            input=inputs[0].name if inputs else None,
            input_type=inputs[0].kind if inputs else None,
            result_type=result,
            argument=", ".join([*(given.canonical for given in inputs), *stored]) or "*",
            more_inputs=tuple((given.name, given.kind) for given in inputs[1:]),
            parameter=parameter,
        )
        self._buffers[key] = buffer
        return buffer

    def _check_input(self, kind: BufferFunction, given: _Input, shown: str) -> None:
        if given.is_collated and kind in _COMPARED:
            raise self._refuse(
                "not-supported-here",
                f"{shown} over values with a collation cannot be kept up to date",
                "cast the values to string first",
            )
        if not _is_allowed(kind, given.kind):
            raise self._refuse(
                "not-supported-here",
                f"{shown} over values of type {_type_name(given.kind)} cannot be kept up to date",
                "make texts of them first: F.to_json(..)"
                if given.kind.startswith("{")
                else "cast the values to double, decimal or string first",
            )

    def _check_group_types(self, group_columns: tuple[tuple[str, str], ...]) -> None:
        for index, ((name, _), group) in enumerate(zip(group_columns, self._groups, strict=True)):
            if not self._is_window(index) and not is_groupable(group):
                raise self._refuse(
                    "not-supported-here",
                    f'"{name}" is of type {group.dataType().simpleString()}; that is no key',
                    f'cast it: groupBy(F.col("{name}").cast("string"))',
                )

    def _check_no_python_function(self) -> None:
        """Grouping values travel as SQL text, which a Python function does not have."""
        for group in self._groups:
            pending = [group]
            while pending:
                one = pending.pop()
                if class_of(one) == "PythonUDF":
                    name = str(one.name())
                    raise self._refuse(
                        "not-supported-here",
                        f"groupBy does not take a Python function ({name})",
                        f'make it a column first: withColumn("key", {name}(..)).groupBy("key")',
                    )
                pending.extend(sequence(one.children()))

    def _check_against_spark(self, split: AggregateSplit, wanted: StructType) -> None:
        """Both halves, parsed again, must have the types of the whole: SQL text is only trusted when they do."""
        try:
            projected = self._before.selectExpr(
                *(f"{sql} as {name}" for name, sql in split.projection.key_sql + split.projection.input_sql)
            )
            finished = StructType(
                [
                    StructField(f"g{i}", _parse_datatype_json_string(kind))
                    for i, (_, kind) in enumerate(split.group_columns)
                ]
                + [StructField(b.name, _parse_datatype_json_string(b.result_type)) for b in split.buffers]
                + [StructField(SESSION_END_COLUMN, TimestampType())]
            )
            whole = empty_frame(self._spark, finished).selectExpr(
                *(f"{sql} as {quoted(name)}" for name, sql in split.results)
            )
        except PySparkException as error:
            raise self._refuse(
                "not-supported-here",
                "an expression of this aggregate has no form in SQL (a Python function?)",
                _TWO_STEPS,
            ) from error
        same = [field.dataType.json() for field in projected.schema] == [kind for _, kind in split.projection.columns]
        if not same or [f.dataType for f in whole.schema] != [f.dataType for f in wanted]:
            raise self._refuse("not-supported-here", "this aggregate changes its types when taken apart", _TWO_STEPS)

    def _leaf_column(self, expression: JavaObject) -> str | None:
        """The name of the leaf's column that `expression` is, or None."""
        if expression is None or class_of(expression) != "AttributeReference":
            return None
        return self._leaf_columns.get(expression_id(expression))

    def _unaliased(self, expression: JavaObject) -> JavaObject:
        return expression.child() if class_of(expression) == "Alias" else expression

    def _column(self, name: str) -> JavaObject:
        return unresolved_column(self._spark, name)

    def _is(self, expression: JavaObject, name: str) -> bool:
        return is_instance(self._spark, expression, _EXPRESSIONS + name)

    def _not_mergeable(self, name: str, expression: JavaObject) -> TopologyError:
        """Functions of the lists above and Python functions cannot be merged; any other one is not written yet."""
        shown = str(expression.sql())
        distinct = name.endswith("_distinct")
        if distinct or name in _REFUSED:
            reason, fix = _REFUSED.get(name, (_EVERY_VALUE, _DISTINCT))
            return self._refuse("aggregate-not-mergeable", f"{shown} {reason}", fix)
        if class_of(expression.aggregateFunction()).startswith("Python"):
            message = f"{shown} is a Python function over all rows of the group; its results do not merge"
            return self._refuse("aggregate-not-mergeable", message, f"write it with Spark's aggregates: {_WORKING}")
        fix = f"in foreachBatch each micro-batch can be aggregated by itself; {_WORKING}"
        return self._refuse("not-supported-here", f"{shown} is not supported yet", fix)

    def _refuse(self, code: str, message: str, fix: str) -> TopologyError:
        return refusal(code, message, fix, self._where)


def columns_needed(projected: DataFrame) -> tuple[str, ...]:
    """Return the source columns that the grouping values and inputs of a projection refer to."""
    return columns_read(projected)


def is_number(type_json: str) -> bool:
    """Whether values of this type (`DataType.json()`) can be added up."""
    return type_json in _NUMBERS or _is_decimal(type_json)


def is_groupable(expression: JavaObject) -> bool:
    """Whether values of a Catalyst expression can be a key: equal values have equal bytes."""
    kind = str(expression.dataType().json())
    return not _is_collated(expression) and (kind in _INTEGERS or kind in _PLAIN or _is_decimal(kind))


def is_sortable(expression: JavaObject) -> bool:
    """Whether values of a Catalyst expression can be stored in a row and compared by their bytes or numbers."""
    return not _is_collated(expression) and _is_stored(str(expression.dataType().json()))


def _is_decimal(type_json: str) -> bool:
    return type_json.startswith('"decimal(')


def _is_stored(type_json: str) -> bool:
    return is_number(type_json) or type_json in _PLAIN


def _is_allowed(kind: BufferFunction, type_json: str) -> bool:
    """Whether a function keeps values of this type. Each function is named: a new one has no default."""
    if kind == "count":
        return True
    if kind in _OVER_NUMBERS:
        return is_number(type_json)
    if kind in _COMPARED:
        return _is_stored(type_json)
    if kind in _BITS:
        return type_json in _INTEGERS
    if kind == "percentile":
        return is_number(type_json)
    if kind == "percentile_approx":
        return is_number(type_json) or type_json in _TIMES
    raise ValueError(f"no input types are defined for the aggregate function {kind!r}")


def _never_overflows(kind: str, function: JavaObject) -> bool:
    """Whether a sum or average cannot leave the range of its type, so that `try_sum` and `try_avg` are never null."""
    [child] = sequence(function.children())
    added = str(child.dataType().json())
    return added in ('"float"', '"double"') or (kind == "avg" and added in _INTEGERS)


def _without_exact_cast(expression: JavaObject) -> JavaObject:
    """The integer or float under the cast to double that Spark adds: the state makes the same double of it.

    Without the cast the input is a column, which needs no Spark SQL. Decimals keep theirs: Arrow rounds otherwise.
    """
    if class_of(expression) != "Cast" or str(expression.dataType().json()) != '"double"':
        return expression
    child = expression.child()
    return child if str(child.dataType().json()) in _INTEGERS | {'"float"'} else expression


def _is_collated(expression: JavaObject) -> bool:
    """Whether texts that differ may count as equal: a collation is no part of the type's JSON."""
    shown = str(expression.dataType().simpleString())
    return shown.startswith("string") and shown != "string"


def _type_name(type_json: str) -> str:
    return str(_parse_datatype_json_string(type_json).simpleString())
