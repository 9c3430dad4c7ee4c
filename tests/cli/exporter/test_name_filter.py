"""Filters of names."""

from __future__ import annotations

import time

import pytest

from headrace.cli.exporter.name_filter import NameFilter
from headrace.errors import ConfigError


def test_a_pattern_has_to_match_the_whole_name() -> None:
    chosen = NameFilter(include="orders-.*", exclude=".*-test")
    assert chosen.selects("orders-eu")
    assert not chosen.selects("my-orders-eu")
    assert not chosen.selects("orders-test")
    assert NameFilter().selects("")


@pytest.mark.parametrize("pattern", ["(", "a" * 1_001])
def test_an_invalid_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="Invalid pattern"):
        NameFilter(exclude=pattern)


def test_a_crafted_name_costs_linear_time() -> None:
    begun = time.monotonic()
    assert not NameFilter(include="(a+)+b").selects("a" * 5_000)  # Python's re would not end
    assert time.monotonic() - begun < 10
