"""The known name that a wrong one was probably meant to be."""

from __future__ import annotations

import pytest

from headrace.suggestions import nearest

SETTINGS = ("log.retention.ms", "log.retention.bytes", "log.segment.bytes", "num.partitions")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("log.retention.mss", "log.retention.ms"),
        ("retention.ms", "log.retention.ms"),
        ("num.partition", "num.partitions"),
        ("x", None),
        ("", None),
        ("completely.different", None),
    ],
)
def test_nearest_name_or_none(name: str, meant: str | None) -> None:
    assert nearest(name, SETTINGS) == meant


def test_the_order_of_the_known_names_does_not_matter() -> None:
    assert nearest("ab", ["abc", "abd"]) == nearest("ab", ["abd", "abc"])


def test_no_known_names() -> None:
    assert nearest("anything", []) is None
