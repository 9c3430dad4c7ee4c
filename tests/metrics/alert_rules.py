"""A Prometheus of the subset that our alert rules use: reads the file, takes scrapes, says which alerts fire.

Prometheus' own `promtool` is not to be had here. The subset: vectors by name, `increase`, `min_over_time` and
`max_over_time` over a range, comparisons with a number, `and`, and `for`. `increase` adds what a counter grew by from
sample to sample, resets included; Prometheus extrapolates to the ends of the range, by a sample's worth at most. What
is not in the subset is refused. The file is read by its indentation: mappings, lists, plain and quoted strings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

__all__ = ["Prometheus", "Rule", "read_rules"]

LOOKBACK_S = 300
Labels = tuple[tuple[str, str], ...]
_UNITS = {"s": 1, "m": 60, "h": 3600}
_COMPARISONS = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
}
_TERM = re.compile(
    r"(?:(?P<function>\w+)\((?P<ranged>\w+)\[(?P<range>\w+)\]\)|(?P<instant>\w+)) (?P<op>[<>]=?) (?P<number>\S+)"
)
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class Rule:
    name: str
    expr: str
    for_s: int
    labels: Mapping[str, str]
    annotations: Mapping[str, str]

    @property
    def metrics(self) -> list[str]:
        return [found["ranged"] or found["instant"] for found in map(_term, self.expr.split(" and "))]


def read_rules(text: str) -> list[Rule]:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    tree, rest = _block(lines, 0)
    assert not rest
    return [
        Rule(each["alert"], each["expr"], seconds(each["for"]), each["labels"], each["annotations"])
        for group in tree["groups"]
        for each in group["rules"]
    ]


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)([smh])", text)
    assert found, f"{text} is no duration of the subset"
    return int(found[1]) * _UNITS[found[2]]


def _block(lines: list[str], indent: int) -> tuple[Any, list[str]]:
    is_list = lines[0][indent:].startswith("- ")
    found: Any = [] if is_list else {}
    while lines and len(lines[0]) - len(lines[0].lstrip()) == indent:
        if is_list:
            assert lines[0][indent:].startswith("- ")
            lines = [lines[0][:indent] + "  " + lines[0][indent + 2 :], *lines[1:]]
            item, lines = _block(lines, indent + 2)
            found.append(item)
            continue
        if lines[0][indent:].startswith("- "):
            break
        key, _, value = lines[0].strip().partition(":")
        lines = lines[1:]
        assert key not in found, f"{key} stands twice"
        if value.strip():
            found[key] = value.strip()[1:-1] if value.strip().startswith('"') else value.strip()
        else:
            found[key], lines = _block(lines, len(lines[0]) - len(lines[0].lstrip()))
    return found, lines


def _term(text: str) -> dict[str, str]:
    found = _TERM.fullmatch(text.strip())
    assert found, f"{text} is beyond the subset"
    assert found["function"] in (None, "increase", "min_over_time", "max_over_time")
    return found.groupdict()


@dataclass
class Prometheus:
    """Mutable: series, and which alerts have been pending since when."""

    rules: list[Rule]
    series: dict[str, dict[Labels, list[tuple[float, float]]]] = field(default_factory=dict)
    pending: dict[tuple[str, Labels], float] = field(default_factory=dict)
    fired: dict[str, set[Labels]] = field(default_factory=dict)

    def scrape(self, now_s: float, instance: str, page: str) -> None:
        for line in page.splitlines():
            if line.startswith("#"):
                continue
            found = _SAMPLE.fullmatch(line)
            assert found, f"{line} is no sample"
            labels = dict(_LABEL.findall(found["labels"] or "")) | {"instance": instance}
            by_labels = self.series.setdefault(found["name"], {})
            by_labels.setdefault(tuple(sorted(labels.items())), []).append((now_s, float(found["value"])))

    def evaluate(self, now_s: float) -> None:
        """What fires now is added to `fired`, by alert."""
        for rule in self.rules:
            true = self._true(rule.expr, now_s)
            for labels in true:
                since = self.pending.setdefault((rule.name, labels), now_s)
                if now_s - since >= rule.for_s:
                    self.fired.setdefault(rule.name, set()).add(labels)
            for name, labels in [key for key in self.pending if key[0] == rule.name and key[1] not in true]:
                del self.pending[name, labels]

    def _true(self, expr: str, now_s: float) -> set[Labels]:
        parts = [self._compare(_term(part), now_s) for part in expr.split(" and ")]
        return set.intersection(*parts)

    def _compare(self, term: dict[str, str], now_s: float) -> set[Labels]:
        holds = _COMPARISONS[term["op"]]
        found = self._vector(term, now_s)
        return {labels for labels, value in found.items() if holds(value, float(term["number"]))}

    def _vector(self, term: dict[str, str], now_s: float) -> dict[Labels, float]:
        by_labels = self.series.get(term["ranged"] or term["instant"], {})
        if term["instant"]:
            recent = {labels: samples[-1] for labels, samples in by_labels.items()}
            return {labels: value for labels, (at, value) in recent.items() if now_s - at <= LOOKBACK_S}
        start_s = now_s - seconds(term["range"])
        found = {}
        for labels, samples in by_labels.items():
            within = [value for at, value in samples if start_s <= at <= now_s]
            if term["function"] == "increase":
                if len(within) > 1:
                    steps = pairwise(within)
                    found[labels] = sum(after - before if after >= before else after for before, after in steps)
            elif within:
                found[labels] = min(within) if term["function"] == "min_over_time" else max(within)
        return found
