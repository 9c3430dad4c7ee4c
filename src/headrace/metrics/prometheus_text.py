"""Metrics as Prometheus text (exposition format 0.0.4), under the names that a JMX exporter gives Kafka's MBeans.

The exporter's rule without patterns: `domain_type_attribute`, the MBean's further properties as labels, every character
that Prometheus does not allow turned into `_`. So `group-count` of
`kafka.server:type=group-coordinator-metrics,protocol=streams` is
`kafka_server_group_coordinator_metrics_group_count{protocol="streams"}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["Family", "Sample", "exporter_name", "prometheus_text", "sample_name"]

_NOT_ALLOWED = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """All samples of one attribute of one type of MBean."""

    mbean: str
    attribute: str
    kind: Literal["counter", "gauge"]
    help: str
    samples: tuple[Sample, ...]

    @property
    def name(self) -> str:
        return exporter_name(self.mbean, self.attribute)


def exporter_name(mbean: str, attribute: str) -> str:
    """`mbean` is `domain:type=…`; further properties are labels and do not belong to the name."""
    domain, _, properties = mbean.partition(":")
    kind = properties.split(",")[0].partition("=")[2]
    return _NOT_ALLOWED.sub("_", f"{domain}_{kind}_{attribute}")


def sample_name(family: Family, sample: Sample) -> str:
    """With its labels, as a line begins."""
    if not sample.labels:
        return family.name
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in sample.labels.items())
    return f"{family.name}{{{labels}}}"


def prometheus_text(families: Iterable[Family]) -> str:
    """Families of one name are told as one; the first one's help stands."""
    by_name: dict[str, list[Family]] = {}
    for family in families:
        by_name.setdefault(family.name, []).append(family)
    lines: list[str] = []
    for name, alike in by_name.items():
        lines.append(f"# HELP {name} {alike[0].help.replace(chr(92), chr(92) * 2)}")
        lines.append(f"# TYPE {name} {alike[0].kind}")
        lines.extend(f"{sample_name(family, each)} {each.value!r}" for family in alike for each in family.samples)
    return "".join(f"{line}\n" for line in lines)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
