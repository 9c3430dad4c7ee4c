"""Bounds of an aggregate's results when records of a group were counted again, from figures of the group.

r records counted again change a count by r, a sum by at most r times the extremes, a mean within the extremes, a
variance by the squared distance of the extremes from the mean, and an extreme not at all. Doubles have slack for the
order of their terms.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import _parse_datatype_json_string

from headrace.spark.topology.nodes import COLLECTING, VALUE_FUNCTIONS, Buffer

__all__ = ["TOLERANCE", "corners", "group_figures", "span"]

TOLERANCE = 1e-12
_MOST_CORNERS = 64

Figures = Mapping[str, Any]
Span = tuple[Any, ...]


def group_figures(buffers: Iterable[Buffer]) -> list[Column]:
    """Return the aggregates that `span` needs: the number of rows, and figures of each buffer's inputs.

    There is no sum that no buffer has: it would overflow where values are hashes, of which only the greatest is kept.
    """
    figures = {"rows": F.count("*")}
    for buffer in buffers:
        figures |= _figures_of(buffer)
    return [figure.alias(name) for name, figure in figures.items()]


def _figures_of(buffer: Buffer) -> dict[str, Column]:
    """Return the figures of one buffer by their names. Those of an input are the same for all its buffers."""
    name, given = buffer.name, buffer.input
    if given is None:
        return {}
    if buffer.function == "count":
        return {f"{given}_count": F.count(given)}
    if buffer.function == "count_distinct":
        return {f"{name}_values": F.count_distinct(*buffer.inputs)}
    if buffer.function == "approx_count_distinct":
        return {f"{name}_values": F.approx_count_distinct(given, _deviation(int(buffer.parameter)))}
    if buffer.function in VALUE_FUNCTIONS | {"percentile_approx"}:
        return _value_figures(buffer, given)
    if buffer.function in ("max_by", "min_by"):
        [(ordering, _)] = buffer.more_inputs
        pair = F.when(F.col(ordering).isNotNull(), F.struct(F.col(ordering).alias("y"), F.col(given).alias("x")))
        extreme = F.max(pair) if buffer.function == "max_by" else F.min(pair)
        return {f"{name}_x": extreme.getField("x")}
    if buffer.function in _COMOMENTS:
        other = buffer.more_inputs[0][0]
        figures = _comoment_figures(name, given, other)
        if buffer.function in _REGRESSIONS:
            figures[f"{name}_value"] = _REGRESSIONS[buffer.function](given, other)
        return figures
    figures = {f"{given}_count": F.count(given), f"{given}_min": F.min(given), f"{given}_max": F.max(given)}
    value = F.col(given).cast("double")
    if buffer.function in _OF_ONE:
        figures[f"{name}_value"] = _OF_ONE[buffer.function](given)
    if buffer.function in ("sum", "avg"):
        figures |= {f"{given}_sum": F.sum(given), f"{given}_size": F.sum(F.abs(value))}
    if buffer.function in _MOMENTS:
        figures |= {f"{name}_mean": F.avg(value), f"{name}_variance": F.var_pop(value)}
    return figures


def _value_figures(buffer: Buffer, given: str) -> dict[str, Column]:
    """Return the figures of a function that keeps the values of its group."""
    if buffer.function == "percentile_approx":
        return _rank_figures(buffer, given)
    name = buffer.name
    if buffer.function in COLLECTING:
        fields = [F.col(one) for one in buffer.inputs]
        value = F.struct(*fields) if '"type":"struct"' in buffer.result_type else fields[0]
        return {f"{name}_value": (F.collect_list if buffer.function == "collect_list" else F.collect_set)(value)}
    asked = json.loads(buffer.parameter)
    if buffer.function == "mode":  # the least or greatest one of the most frequent values
        order = " DESC" if asked["takes_greatest"] else ""
        return {f"{name}_value": F.expr(f"mode() WITHIN GROUP (ORDER BY {given}{order})")}
    function, order = "percentile_disc" if asked["discrete"] else "percentile_cont", asked["descending"] * " DESC"
    at = [F.expr(f"{function}({one!r}D) WITHIN GROUP (ORDER BY {given}{order})") for one in asked["at"]]
    found = F.when(F.count(given) > 0, F.array(*at)) if asked["many"] else at[0]
    return {f"{name}_value": found, f"{given}_min": F.min(given), f"{given}_max": F.max(given)}


def _rank_figures(buffer: Buffer, given: str) -> dict[str, Column]:
    """Return the values at the least and greatest rank that an approximate percentile may have."""
    asked = json.loads(buffer.parameter)
    # From the sorted values: `percentile_disc` makes doubles of decimals and longs, and takes no dates.
    values, count = f"sort_array(collect_list({given}))", f"count({given})"
    error = f"floor({count} / {asked['accuracy']}D)"
    figures = {f"{given}_min": F.min(given), f"{given}_max": F.max(given)}
    for end, rank in (("low", "greatest(1, {} - {})"), ("high", f"least({count}, {{}} + {{}})")):
        ranks = [rank.format(f"greatest(1, ceil({one!r}D * {count}))", error) for one in asked["at"]]
        found = [f"try_element_at({values}, cast({one} as int))" for one in ranks]
        figures[f"{buffer.name}_{end}"] = F.expr(f"array({', '.join(found)})")
    return figures


def _comoment_figures(name: str, first: str, second: str) -> dict[str, Column]:
    both = F.col(first).isNotNull() & F.col(second).isNotNull()
    x, y = (F.when(both, F.col(column).cast("double")) for column in (first, second))
    figures = {f"{name}_count": F.count(x), f"{name}_covariance": F.covar_pop(x, y)}
    for axis, value in (("x", x), ("y", y)):
        figures |= {f"{name}_{axis}_variance": F.var_pop(value), f"{name}_{axis}_mean": F.avg(value)}
        figures |= {f"{name}_{axis}_min": F.min(value), f"{name}_{axis}_max": F.max(value)}
    return figures


def span(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Return the least and the greatest value of a finished buffer, with `repeats` of the group's rows counted again.

    Raises ValueError for a function that has no bounds.
    """
    find = _SPANS.get(buffer.function)
    if find is None:
        raise ValueError(f"no bounds are defined for the aggregate function {buffer.function!r}")
    return find(buffer, figures, repeats)


def corners(spans: Sequence[Span]) -> list[tuple[Any, ...]]:
    """Return combinations of the buffers' bounds.

    All of them where they are few. Otherwise all least, all greatest, and each buffer's greatest beside all others'
    least and the reverse: the extremes of results that rise or fall with one buffer, or with all of them together.
    """
    if math.prod(len(each) for each in spans) <= _MOST_CORNERS:
        return list(itertools.product(*spans))
    least, greatest = tuple(each[0] for each in spans), tuple(each[-1] for each in spans)
    found = [least, greatest]
    for at, each in enumerate(spans):
        for value in each:
            found += [(*least[:at], value, *least[at + 1 :]), (*greatest[:at], value, *greatest[at + 1 :])]
    return list(dict.fromkeys(found))


def _count(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    if buffer.input is None:
        return (figures["rows"] + repeats,)
    count = figures[f"{buffer.input}_count"]
    return tuple(dict.fromkeys((count, count + repeats)))


def _deviation(bits: int) -> float:
    """Return a relative standard deviation for which Spark takes 2 ** bits registers."""
    return 1.106 / 2 ** ((bits - 0.5) / 2)


def _count_distinct(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """A value that comes again is not counted again."""
    del repeats
    return (figures[f"{buffer.name}_values"],)


def _extreme(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    del repeats
    return (figures[f"{buffer.input}_{buffer.function}"],)


def _extreme_by(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Several rows may have the extreme: the row that Headrace takes of them, in Spark's own order of structs."""
    del repeats
    return (figures[f"{buffer.name}_x"],)


def _sum(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    name = buffer.input
    if figures[f"{name}_count"] == 0:
        return (None,)
    total, slack = figures[f"{name}_sum"], figures[f"{name}_size"] * TOLERANCE
    # r records more, each at least the minimum and at most the maximum of the group. 0 is included: the repeated
    # records may have been null.
    low = total + repeats * min(0, figures[f"{name}_min"])
    high = total + repeats * max(0, figures[f"{name}_max"])
    return (low - slack, high + slack) if isinstance(total, float) else tuple(dict.fromkeys((low, high)))


def _average(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    name, count = buffer.input, figures[f"{buffer.input}_count"]
    if count == 0:
        return (None,)
    total, slack = figures[f"{name}_sum"], figures[f"{name}_size"] * TOLERANCE / count
    mean = total / count
    low = min(mean, (total + repeats * figures[f"{name}_min"]) / (count + repeats))
    high = max(mean, (total + repeats * figures[f"{name}_max"]) / (count + repeats))
    if isinstance(total, Decimal):  # rounded to the digits of the result
        digits = Decimal(1).scaleb(-_parse_datatype_json_string(buffer.result_type).scale)
        return (low.quantize(digits, ROUND_FLOOR), high.quantize(digits, ROUND_CEILING))
    return (low - slack, high + slack)


def _moments(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    name, count = buffer.input, figures[f"{buffer.input}_count"]
    sample = int(buffer.function.endswith("_samp"))
    if count <= sample:  # equal values have no spread, however often they are counted
        return (None, 0.0) if count and repeats else (None,)
    ends = float(figures[f"{name}_min"]), float(figures[f"{name}_max"])
    mean, variance = figures[f"{buffer.name}_mean"], figures[f"{buffer.name}_variance"]
    if not math.isfinite(variance):
        return (math.nan,)
    slack = _slack(count, variance, ends)
    # A record adds at most its squared distance from the mean, and at least nothing; the divisor may have grown as
    # well.
    far = max(ends[1] - mean, mean - ends[0])
    low = max(0.0, count * variance - slack) / (count + repeats - sample)
    high = (count * variance + repeats * far * far + slack) / (count - sample)
    return (math.sqrt(low), math.sqrt(high)) if buffer.function.startswith("stddev") else (low, high)


def _squares(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Bounds of a sum of squared distances to the mean, which no record makes smaller."""
    name, count = buffer.input, figures[f"{buffer.input}_count"]
    if count == 0:
        return (None,)
    variance, mean = figures[f"{buffer.name}_variance"], figures[f"{buffer.name}_mean"]
    if not math.isfinite(variance):
        return (math.nan,)
    ends = float(figures[f"{name}_min"]), float(figures[f"{name}_max"])
    slack, far = _slack(count, variance, ends), max(ends[1] - mean, mean - ends[0])
    return (max(0.0, count * variance - slack), count * variance + repeats * far * far + slack)


def _shape(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Bounds of skewness and kurtosis: n values have at most the square root of n, and n."""
    value, count = figures[f"{buffer.name}_value"], figures[f"{buffer.input}_count"]
    if value is None or math.isnan(value):
        return (value,)
    if repeats:
        most = float(count + repeats)
        return (-math.sqrt(most), math.sqrt(most)) if buffer.function == "skewness" else (-3.0, most)
    size = max(abs(float(figures[f"{buffer.input}_{end}"])) for end in ("min", "max"))
    deviation = math.sqrt(figures[f"{buffer.name}_variance"])
    slack = 10 * TOLERANCE * (1 + size / deviation) * (3 + abs(value))
    return (value - slack, value + slack)


def _values(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Values that are counted again move a percentile between the extremes; another mode may become the first."""
    value = figures[f"{buffer.name}_value"]
    if value is None or not repeats or buffer.function != "percentile":
        return (tuple(value) if isinstance(value, list) else value,)
    ends = [float(figures[f"{buffer.input}_{end}"]) for end in ("min", "max")]
    return tuple((end,) * len(value) if isinstance(value, list) else end for end in ends)


def _ranks(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Values within the rank error of an approximate percentile. Records counted again move it to any value."""
    name, many = buffer.name, json.loads(buffer.parameter)["many"]
    low, high = figures[f"{name}_low"], figures[f"{name}_high"]
    if figures[f"{buffer.input}_min"] is None:
        return (None,)
    if repeats:
        low, high = ([figures[f"{buffer.input}_{end}"]] * len(low) for end in ("min", "max"))
    ends = [low, high]
    if any(isinstance(one, float) and math.isnan(one) for one in high):
        # NaN is the greatest number, to which Python's comparisons are blind.
        ends.insert(1, [math.inf if isinstance(one, float) and math.isnan(one) else one for one in high])
    return tuple(tuple(end) if many else end[0] for end in ends)


def _bits(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """A bit that is there already changes neither `and` nor `or`; an exclusive `or` may become anything."""
    value = figures[f"{buffer.name}_value"]
    if value is None or not repeats or buffer.function != "bit_xor":
        return (value,)
    half = 1 << {'"byte"': 7, '"short"': 15, '"integer"': 31}.get(str(buffer.input_type), 63)
    return (-half, half - 1)


def _product(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    value, count = figures[f"{buffer.name}_value"], figures[f"{buffer.input}_count"]
    if value is None or not math.isfinite(value):
        return (value,)
    slack = abs(value) * (count + repeats) * 2.5e-16
    if not repeats:
        return (value - slack, value + slack)
    factor = max(1.0, *(abs(float(figures[f"{buffer.input}_{end}"])) for end in ("min", "max"))) ** repeats
    return (-abs(value) * factor - slack, abs(value) * factor + slack)


def _regression(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Bounds of a line. Records that are counted again may turn it anywhere between the extremes' corners."""
    name, value = buffer.name, figures[f"{buffer.name}_value"]
    if value is None or math.isnan(value):
        return (value,)
    if repeats:
        return (0.0, 1.0) if buffer.function == "regr_r2" else (-math.inf, math.inf)
    # The first input is the dependent one, "x" among the figures.
    deviations, sizes = _deviations_and_sizes(name, figures)
    relative = sum(1 + size / deviation for size, deviation in zip(sizes, deviations, strict=True) if deviation)
    scale = {"regr_r2": 1.0, "regr_slope": deviations[0] / deviations[1] if deviations[1] else 1.0}
    size = scale.get(buffer.function, sizes[0] + sizes[1] * (deviations[0] / deviations[1] if deviations[1] else 1.0))
    slack = 10 * TOLERANCE * relative * (abs(value) + size)
    return (value - slack, value + slack)


def _slack(count: int, variance: float, ends: tuple[float, float]) -> float:
    """Rounding of a sum of squared distances: it grows with the ratio of the mean to the spread."""
    size = max(abs(end) for end in ends)
    return TOLERANCE * count * (variance + math.sqrt(variance) * size) + count * (size * 1e-15) ** 2


def _comoments(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    name, count = buffer.name, figures[f"{buffer.name}_count"]
    is_correlation = buffer.function == "corr"
    missing = int(is_correlation or buffer.function.endswith("_samp"))
    if count <= missing:
        return (None, 0.0) if count and repeats and not is_correlation else (None,)
    covariance = figures[f"{name}_covariance"]
    variances = [figures[f"{name}_{axis}_variance"] for axis in ("x", "y")]
    if not all(map(math.isfinite, (covariance, *variances))):
        return (math.nan,)
    ends = [(figures[f"{name}_{axis}_min"], figures[f"{name}_{axis}_max"]) for axis in ("x", "y")]
    slacks = [_slack(count, variance, each) for variance, each in zip(variances, ends, strict=True)]
    deviations = [math.sqrt(variance) for variance in variances]
    sizes = [max(map(abs, each)) for each in ends]
    slack = TOLERANCE * count * (deviations[0] * deviations[1] + deviations[0] * sizes[1] + deviations[1] * sizes[0])
    if is_correlation:
        scale = deviations[0] * deviations[1]
        if scale == 0.0:
            return (None,)
        if repeats:
            return (-1.0 - TOLERANCE, 1.0 + TOLERANCE)
        relative = sum(each / (count * variance) for each, variance in zip(slacks, variances, strict=True))
        slack = slack / (count * scale) + relative
        return (covariance / scale - slack, covariance / scale + slack)
    # r rows more, at most as far from the means as the extremes, change the co-moment by at most twice their product.
    reach = 2 * repeats * math.prod(high - low for low, high in ends) + slack
    found = [
        (count * covariance + change) / (divisor - missing)
        for change in (-reach, reach)
        for divisor in (count, count + repeats)
    ]
    return (min(found), max(found))


def _deviations_and_sizes(name: str, figures: Figures) -> tuple[list[float], list[float]]:
    """Return the standard deviation of both columns, and the largest absolute value of each."""
    deviations = [math.sqrt(figures[f"{name}_{axis}_variance"]) for axis in ("x", "y")]
    sizes = [max(abs(figures[f"{name}_{axis}_{end}"]) for end in ("min", "max")) for axis in ("x", "y")]
    return deviations, sizes


def _sum_of_products(buffer: Buffer, figures: Figures, repeats: int) -> Span:
    """Bounds of `regr_sxy`. A record that is counted again adds or takes away a product of distances."""
    name, count = buffer.name, figures[f"{buffer.name}_count"]
    if not count:
        return (None,)
    covariance = figures[f"{name}_covariance"]
    reach = 2 * repeats * math.prod(figures[f"{name}_{a}_max"] - figures[f"{name}_{a}_min"] for a in ("x", "y"))
    deviations, sizes = _deviations_and_sizes(name, figures)
    if not all(map(math.isfinite, (covariance, *deviations))):
        return (math.nan,)
    slack = TOLERANCE * count * (deviations[0] * deviations[1] + deviations[0] * sizes[1] + deviations[1] * sizes[0])
    return (count * covariance - slack - reach, count * covariance + slack + reach)


# Spark's own functions of one and of two columns.
_OF_ONE: Mapping[str, Callable[[str], Column]] = {
    "bit_and": F.bit_and,
    "bit_or": F.bit_or,
    "bit_xor": F.bit_xor,
    "product": F.product,
    "skewness": F.skewness,
    "kurtosis": F.kurtosis,
}
_REGRESSIONS: Mapping[str, Callable[[str, str], Column]] = {
    "regr_r2": F.regr_r2,
    "regr_slope": F.regr_slope,
    "regr_intercept": F.regr_intercept,
}
# Functions whose bounds need mean and variance.
_MOMENTS = frozenset({"stddev_pop", "stddev_samp", "var_pop", "var_samp", "regr_sxx", "skewness", "kurtosis"})
_COMOMENTS = frozenset({"corr", "covar_pop", "covar_samp", "regr_sxy", *_REGRESSIONS})
_SPANS: Mapping[str, Callable[[Buffer, Figures, int], Span]] = {
    "count": _count,
    "count_distinct": _count_distinct,
    "approx_count_distinct": _count_distinct,
    "sum": _sum,
    "avg": _average,
    "min": _extreme,
    "max": _extreme,
    "max_by": _extreme_by,
    "min_by": _extreme_by,
    **dict.fromkeys(("bit_and", "bit_or", "bit_xor"), _bits),
    "product": _product,
    "percentile_approx": _ranks,
    **dict.fromkeys(VALUE_FUNCTIONS, _values),
    **dict.fromkeys(("skewness", "kurtosis"), _shape),
    **dict.fromkeys(("stddev_pop", "stddev_samp", "var_pop", "var_samp"), _moments),
    "regr_sxx": _squares,
    **dict.fromkeys(("corr", "covar_pop", "covar_samp"), _comoments),
    "regr_sxy": _sum_of_products,
    **dict.fromkeys(_REGRESSIONS, _regression),
}
