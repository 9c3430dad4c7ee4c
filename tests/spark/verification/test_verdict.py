"""A verdict as HTML and as text."""

from __future__ import annotations

import pytest
from tests.spark.display.parsed_html import Parsed, verdict

from headrace.spark.verification.verdict import SinkVerdict


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, "equal"),
        ({"undecided": "nothing is committed"}, "cannot tell"),
        ({"sinks": (SinkVerdict(topic="out", kind="table", expected=3, found=2, equal=2, lost=1),)}, "differs"),
        (
            {
                "guarantee": "at_least_once",
                "sinks": (SinkVerdict(topic="out", kind="stream", expected=3, found=4, equal=3, repeated=1),),
            },
            "equal but for repeats",
        ),
    ],
)
def test_a_verdict_shows_its_answer_as_one_word(changes, word):
    assert word in Parsed(verdict(**changes)._repr_html_()).text
