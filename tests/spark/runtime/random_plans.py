"""Random rows and random Spark SQL over them: calls of a stream, in most of which some row fails."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

ZONE = "Europe/Berlin"  # the clock changes on 31 March and 27 October 2024
SCHEMA = (
    "id long, text string, n int, big long, flag boolean, at timestamp, wall timestamp_ntz, day date, "
    "price decimal(20,2), wide decimal(38,10), ratio double, items array<int>, names array<string>, "
    "nested struct<a:int,b:struct<c:string,d:decimal(38,18)>>, tags map<string,int>, bytes binary"
)
_TEXTS = ["x", "", "7", "-12", "99999999999", "2147483647", " 3 ", "1.5", "true", "2024-03-31", "ß€😀", "JFK"]
_ARRAYS = ["items", "transform(items, x -> x + 1)"]
_CHANGES = [datetime(2024, 3, 31, 0, 0, 0, 123456, UTC), datetime(2024, 10, 26, 23, 0, 0, 0, UTC)]


def random_rows(chance: random.Random, count: int) -> list[tuple[Any, ...]]:
    """Return rows of `SCHEMA`, a tenth of whose values are null, and many at the edge of their type."""

    def one(value: Any) -> Any:
        return None if chance.random() < 0.1 else value

    def row(number: int) -> tuple[Any, ...]:
        moment = chance.choice(_CHANGES) + timedelta(minutes=30 * chance.randrange(8))
        return (
            number,
            one(chance.choice(_TEXTS)),
            one(chance.choice([0, 1, -1, 2, 7, 1 << 30, (1 << 31) - 1, -(1 << 31)])),
            one(chance.choice([0, 1, -3, 1 << 40, (1 << 63) - 1, -(1 << 63)])),
            one(chance.random() < 0.5),
            one(moment),
            one(moment.replace(tzinfo=None)),
            one(date(2024, 2, 29) + timedelta(days=chance.randrange(300))),
            one(Decimal(chance.choice(["0.00", "12.50", "-0.01", "999999999999999999.99"]))),
            one(Decimal(chance.choice(["0.5", "9999999999999999999999999999.0000000001", "-3"]))),
            one(chance.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), 1e300])),
            one([one(item) for item in range(chance.randrange(4))]),
            one([one(chance.choice(_TEXTS)) for _ in range(chance.randrange(3))]),
            one((one(chance.randrange(3)), one((one(chance.choice(_TEXTS)), one(Decimal("0.3333333333333333")))))),
            one({"a": one(1), chance.choice(_TEXTS): one(2)}),
            one(chance.choice([b"", b"\x00\xff"])),
        )

    return [row(number) for number in range(count)]


_FORMS = {
    "int": [
        "n", "nested.a", "cast({string} AS int)", "({int} + {int})", "({int} * {int})", "({int} div {int})",
        "({int} % nullif({int}, 0))", "CASE WHEN {bool} THEN {int} WHEN {bool} THEN {int} END",
        "coalesce({int}, {int})", "if({bool}, {int}, {int})", "element_at(items, {int} % 4)", "items[{int} % 3]",
        "cast({decimal} AS int)", "length({string})", "hour({moment})", "datediff({moment}, wall)", "size(names)",
        "try_cast({string} AS int)", "aggregate(items, 0, (a, x) -> a + coalesce(x, {int}))", "cast({long} AS int)",
        "tags['a']", "nvl2({string}, {int}, {int})", "abs({int})", "greatest({int}, {int})",
    ],
    "long": [
        "big", "id", "({long} + {int})", "({long} * {long})", "cast({string} AS long)", "unix_micros({instant})",
        "cast({decimal} AS long)", "hash({string}, {int})", "shiftleft({long}, 3)", "cast({instant} AS long)",
    ],
    "decimal": [
        "price", "wide", "nested.b.d", "({decimal} * {decimal})", "({decimal} + {int})", "({decimal} / {decimal})",
        "cast({string} AS decimal(10,3))", "cast({decimal} AS decimal(12,2))", "round({decimal}, 1)",
        "cast({int} AS decimal(5,2))",
    ],
    "string": [
        "text", "nested.b.c", "upper({string})", "concat({string}, {string})", "concat_ws('-', {string}, {string})",
        "substring({string}, {int} % 5, 2)", "cast({int} AS string)", "cast({moment} AS string)",
        "date_format({instant}, 'yyyy-MM-dd HH:mm z')", "coalesce({string}, 'none')", "cast({decimal} AS string)",
        "names[0]", "element_at(names, 1)", "regexp_replace({string}, '[0-9]', '#')", "trim({string})",
        "CASE WHEN {bool} THEN {string} ELSE {string} END", "cast({double} AS string)", "to_json(nested)", "hex(bytes)",
    ],
    "bool": [
        "flag", "id % 3 = 0", "{int} > 0", "({bool} OR {int} BETWEEN 0 AND 9)", "({bool} AND {long} <> 1)",
        "{string} IS NOT NULL", "{string} = 'JFK'", "NOT {bool}", "cast({string} AS boolean)", "{string} LIKE '%7%'",
        "{moment} > timestamp'2024-03-31 02:30:00'", "{int} IN (0, 1, 7)", "{decimal} < {decimal}", "{int} <=> {int}",
        "exists(items, x -> x > {int})", "{double} = {double}", "isnull({int})", "array_contains(items, {int})",
    ],
    "double": ["ratio", "({double} * {int})", "({int} / {int})", "cast({string} AS double)", "sqrt({double})"],
    "instant": [
        "at", "cast({string} AS timestamp)", "to_timestamp({string})", "date_trunc('hour', {instant})",
        "({instant} + interval 1 hour)", "cast(wall AS timestamp)", "coalesce({instant}, at)",
        "from_utc_timestamp({instant}, 'America/New_York')",
    ],
    "moment": ["{instant}", "{instant}", "wall", "day", "date_add(day, {int} % 1000)"],
    "other": [
        "items", "nested", "transform(items, x -> x + {int})", "filter(names, x -> length(x) > {int})",
        "named_struct('x', {int}, 'y', {string})", "array({int}, {int})", "map('k', {string})", "bytes",
        "array_sort(items)", "slice(names, 1, 2)",
    ],
}  # fmt: skip


def random_expression(chance: random.Random, kind: str, columns: dict[str, list[str]], depth: int = 0) -> str:
    """Return SQL text of a kind, over the given columns and those that earlier calls made."""
    forms = [*_FORMS[kind], *(column for column in columns.get(kind, ()) for _ in range(6))]
    if depth > 2:
        forms = [form for form in forms if "{" not in form] or ["wall"]
    form = chance.choice(forms)
    while "{" in form:
        start, end = form.index("{"), form.index("}")
        form = form[:start] + random_expression(chance, form[start + 1 : end], columns, depth + 1) + form[end + 1 :]
    return form


Call = tuple[str, tuple[Any, ...]]


def random_plan(chance: random.Random) -> list[Call]:
    """Return calls of a DataFrame with the columns of `SCHEMA`; the last one keeps `id`. Some do not pass Spark's
    analysis.
    """
    made: dict[str, list[str]] = {}
    kinds = [kind for kind in _FORMS if kind != "moment"]
    calls: list[Call] = []
    for level in range(chance.randrange(2, 6)):
        kind = chance.choice(kinds)
        name = f"{kind}{level}"
        step = chance.choice(["where", "where", "withColumn", "withColumn", "selectExpr", "drop", "fillna", "explode"])
        if step == "where":
            calls.append(("where", (random_expression(chance, "bool", made),)))
        elif step == "drop":
            calls.append(("drop", ("bytes",)) if level else ("drop", ("absent",)))
        elif step == "fillna":
            calls.append(("fillna", ({"n": 3, "text": "5"},)))
        elif step == "explode":
            name = f"int{level}"
            calls.append(("selectExpr", ("*", f"explode({chance.choice(_ARRAYS)}) AS {name}")))
            made.setdefault("int", []).append(name)
        else:
            column = random_expression(chance, kind, made)
            calls.append((step, (name, column) if step == "withColumn" else ("*", f"{column} AS {name}")))
            made.setdefault(kind, []).append(name)
    lasts = chance.sample(kinds, 3)
    last = [f"{random_expression(chance, kind, made)} AS last_{kind}" for kind in lasts]
    calls.append(("selectExpr", ("id", *(name for names in made.values() for name in names), *last)))
    if chance.random() < 0.3:
        calls.append(("where", (f"last_{lasts[0]} IS NOT NULL OR id % 2 = 0",)))
    return calls


def applied(frame: DataFrame, calls: list[Call]) -> DataFrame:
    """Return `frame` after the calls."""
    for method, arguments in calls:
        if method == "withColumn":
            frame = frame.withColumn(arguments[0], F.expr(arguments[1]))
        else:
            frame = getattr(frame, method)(*arguments)
    return frame
