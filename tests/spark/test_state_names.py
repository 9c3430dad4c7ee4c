"""Names of stores."""

from __future__ import annotations

import pytest

from headrace.errors import TopologyError
from headrace.spark.state_names import checked_state_name, derived_state_name


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        (["origin"], "by-origin"),
        (["origin", "to_city"], "by-origin-to_city"),
        (["date_trunc(hour, t)"], "by-date_trunc-hour-t"),
        (["ä", "b"], "by-x-b"),
        (["a" * 117], "by-" + "a" * 117),
    ],
)
def test_names_follow_from_columns(columns: list[str], name: str) -> None:
    assert derived_state_name("by", columns, "program.py:1", "agg") == name
    assert checked_state_name(name, "program.py:1") == name


def test_a_derived_name_that_no_topic_can_have_is_refused_with_the_call() -> None:
    with pytest.raises(TopologyError, match="too long") as caught:
        derived_state_name("by", ["a" * 118], "program.py:1", "agg")
    assert caught.value.fix == "name it: agg(.., name='..')"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a" * 121, 7])
def test_names_that_no_topic_can_have_are_refused(name: object) -> None:
    with pytest.raises(TopologyError, match="no name for state"):
        checked_state_name(name, "program.py:1")
