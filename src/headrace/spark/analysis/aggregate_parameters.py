"""Constant arguments of aggregate functions: the size of a sketch, percentages, directions, as text."""

from __future__ import annotations

import json

from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JError

from headrace.spark.runtime.operators.hyper_log_log import MOST_BITS, bits_of_deviation
from headrace.spark.runtime.operators.quantile_sketches import MOST_ACCURACY
from headrace.spark.spark_internals import class_of
from headrace.spark.topology.nodes import COLLECTING
from headrace.spark.unsupported import refusal

__all__ = ["parameter_of", "sketch_size"]


def parameter_of(kind: str, function: JavaObject, shown: str, where: str) -> str:
    """Return the constant arguments of an aggregate function; empty if it has none.

    Args:
        kind: The name of the function in a `Buffer`.
        function: Spark's expression.
        shown: The function as users write it.
        where: "file:line" of the user's call.

    Raises:
        TopologyError: not-supported-here.
    """
    if kind == "approx_count_distinct":
        return _registers(function, shown, where)
    if kind == "percentile":
        return _percentages(function, shown, where)
    if kind == "percentile_approx":
        return _accuracy(function, shown, where)
    if kind == "mode":
        # Several values may be the most frequent. Spark takes any of them, or by the order that is written.
        order = function.reverseOpt()
        return json.dumps({"takes_greatest": order.isDefined() and not order.get(), "takes_any": order.isEmpty()})
    if kind in COLLECTING and not _ignores_nulls(function):
        raise refusal(
            "not-supported-here",
            f"{shown} that keeps nulls is not supported yet",
            "leave the nulls out, or collect F.struct(x)",
            where,
        )
    return ""


def sketch_size(kind: str, parameter: str) -> str:
    """Return the part of a function's constant arguments that decides what is stored; empty if none does."""
    if kind == "approx_count_distinct":
        return parameter
    return str(json.loads(parameter)["accuracy"]) if kind == "percentile_approx" else ""


def _registers(function: JavaObject, shown: str, where: str) -> str:
    bits = bits_of_deviation(float(function.relativeSD()))
    if bits > MOST_BITS:
        raise refusal(
            "not-supported-here",
            f"{shown} with a deviation of {function.relativeSD()} keeps {1 << bits:,} registers per group; at most "
            f"{1 << MOST_BITS:,} are supported",
            "a deviation of 0.0044 or more works; F.count_distinct(x) is exact",
            where,
        )
    return str(bits)


def _percentages(function: JavaObject, shown: str, where: str) -> str:
    frequency = function.frequencyExpression()
    if not frequency.foldable() or frequency.eval(None) != 1:
        raise refusal(
            "not-supported-here",
            f"{shown} with frequencies is not supported yet",
            "percentile(x, p) counts each row once",
            where,
        )
    is_discrete = class_of(function) == "PercentileDisc"
    if is_discrete and function.legacyCalculation():
        raise refusal(
            "not-supported-here",
            f"{shown} by the rule of Spark 3.3 is not supported",
            "set spark.sql.legacy.percentileDiscCalculation to false",
            where,
        )
    at, many = _shares(function)
    return json.dumps({"at": at, "descending": bool(function.reverse()), "discrete": is_discrete, "many": many})


def _accuracy(function: JavaObject, shown: str, where: str) -> str:
    accuracy = int(function.accuracyExpression().eval(None))
    if accuracy > MOST_ACCURACY:
        raise refusal(
            "not-supported-here",
            f"{shown} with an accuracy of {accuracy:,} keeps too many values per group; at most {MOST_ACCURACY:,} is "
            "supported",
            "leave the accuracy out; F.percentile(x, p) is exact, for groups of some 50,000 different values",
            where,
        )
    at, many = _shares(function)
    return json.dumps({"accuracy": accuracy, "at": at, "many": many})


def _shares(function: JavaObject) -> tuple[list[float], bool]:
    """Return the percentages that are asked for, from 0 to 1, and whether they are an array."""
    asked = function.percentageExpression()
    many, found = class_of(asked.dataType()) == "ArrayType", asked.eval(None)
    return [float(one) for one in (found.toDoubleArray() if many else [found])], many


def _ignores_nulls(function: JavaObject) -> bool:
    try:
        return bool(function.ignoreNulls())
    except Py4JError:  # Spark before the option: nulls are left out
        return True
