"""Families of metrics as the modules that tell them write them: a gauge or a counter of one MBean's attribute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from headrace.metrics.prometheus_text import Family, Sample

__all__ = ["Values", "counter", "gauge", "one"]

Values: TypeAlias = Sequence[tuple[float, Mapping[str, str]]]


def one(value: float) -> Values:
    """A family without labels."""
    return [(value, {})]


def gauge(mbean: str, attribute: str, text: str, values: Values) -> Family:
    return _family("gauge", mbean, attribute, text, values)


def counter(mbean: str, attribute: str, text: str, values: Values) -> Family:
    return _family("counter", mbean, attribute, text, values)


def _family(kind: Literal["counter", "gauge"], mbean: str, attribute: str, text: str, values: Values) -> Family:
    samples = tuple(Sample(value=float(value), labels=labels) for value, labels in values)
    return Family(mbean=mbean, attribute=attribute, kind=kind, help=text, samples=samples)
