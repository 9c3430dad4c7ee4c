"""Metric families and their Prometheus text (exposition format 0.0.4), under the names of the JMX exporter for Kafka.

The rule of the JMX exporter without patterns: `domain_type_attribute`, the other properties of the MBean as labels, and
`_` for every character that Prometheus does not allow. So the attribute `group-count` of
`kafka.server:type=group-coordinator-metrics,protocol=streams` is
`kafka_server_group_coordinator_metrics_group_count{protocol="streams"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "Family",
    "Sample",
    "Values",
    "counter",
    "exporter_name",
    "gauge",
    "prometheus_text",
    "sample_name",
    "unlabeled",
]

Values: TypeAlias = Sequence[tuple[float, Mapping[str, str]]]
"""(value, labels) of each sample of a family."""

# Prometheus allows the colon as well, but reserves it for names of recording rules.
_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value with its labels."""

    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All samples of one attribute of one type of MBean.

    Attributes:
        mbean: `domain:type=…`.
        attribute: Name of the attribute, as Kafka spells it.
        kind: Prometheus' type.
        help: One sentence for the HELP line.
        samples: The values.
    """

    mbean: str
    attribute: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[Sample, ...]

    @property
    def name(self) -> str:
        """The name in Prometheus."""
        return exporter_name(self.mbean, self.attribute)


def unlabeled(value: float) -> Values:
    """Return the values of a family without labels."""
    return [(value, {})]


def gauge(mbean: str, attribute: str, text: str, values: Values) -> Family:
    """Return a gauge family; `text` is its help."""
    return _family("gauge", mbean, attribute, text, values)


def counter(mbean: str, attribute: str, text: str, values: Values) -> Family:
    """Return a counter family; `text` is its help."""
    return _family("counter", mbean, attribute, text, values)


def _family(kind: Literal["counter", "gauge"], mbean: str, attribute: str, text: str, values: Values) -> Family:
    samples = tuple(Sample(value=float(value), labels=labels) for value, labels in values)
    return Family(mbean=mbean, attribute=attribute, kind=kind, help=text, samples=samples)


def exporter_name(mbean: str, attribute: str) -> str:
    """Return the name in Prometheus of an attribute; properties of `mbean` after the type are labels.

    An `mbean` without a type is the first part of a name that no MBean has, such as kafka_exporter's `kafka_brokers`.
    """
    # The first property is always `type=…`; it becomes part of the name, and the others are labels already.
    domain, _, properties = mbean.partition(":")
    kind = properties.split(",")[0].partition("=")[2]
    return _NOT_ALLOWED.sub("_", "_".join(part for part in (domain, kind, attribute) if part))


def sample_name(family: Family, sample: Sample) -> str:
    """Return name and labels of a sample, as its line begins."""
    if not sample.labels:
        return family.name
    labels = ",".join(f'{name}="{_escape(value)}"' for name, value in sample.labels.items())
    return f"{family.name}{{{labels}}}"


def prometheus_text(families: Iterable[Family]) -> str:
    """Return the text of a metrics page.

    Families of the same name are merged, since Prometheus allows one block per name; the help is that of the first.
    """
    by_name: dict[str, list[Family]] = {}
    for family in families:
        by_name.setdefault(family.name, []).append(family)
    lines: list[str] = []
    for name, same in by_name.items():
        # In a HELP line only backslash and line feed have escapes; quotes are escaped in label values alone.
        lines.append(f"# HELP {name} {same[0].help.replace(chr(92), chr(92) * 2)}")
        lines.append(f"# TYPE {name} {same[0].kind}")
        # `repr` of a float is the shortest text that reads back as the same double. Prometheus parses values as Go
        # does, so `1e+16`, `inf` and `nan` are valid.
        lines.extend(f"{sample_name(family, each)} {each.value!r}" for family in same for each in family.samples)
    return "".join(f"{line}\n" for line in lines)


def _escape(value: str) -> str:
    # The backslash first, or the backslashes of the other escapes would be doubled.
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
