"""Regular expressions in linear time: Python's `re` is the judge where both speak the same language."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.re2_matcher import LinearPattern

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        ".",
        "[ab]",
        "[^a]",
        "\\d",
        "\\.",
        "[a-c]",
        "^",
        "$",
        "()",
        "-",
        "[b\\-]",
        "\\b",
        "[\\da]",
        "(?i:A)",
    ]
)
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"({pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{0}", "*?", "{1,}"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(PATTERNS, st.lists(st.text("aAbc1.-", max_size=6), max_size=8))
def test_it_matches_what_re_matches(pattern: str, texts: list[str]) -> None:
    ours = LinearPattern(pattern)
    for text in texts:
        assert ours.matches(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


def test_no_pattern_backtracks() -> None:
    """Python's `re` would not come back from this one."""
    assert not LinearPattern("(a+)+b").matches("a" * 10_000)
    assert LinearPattern("(a*)*(a|aa)+").matches("a" * 10_000)


def test_the_cost_is_counted() -> None:
    plain, hostile = LinearPattern("logs-.*"), LinearPattern("(a|b)*a(a|b){200}")
    plain.matches("logs-of-everything")
    text = "".join("ab"[number.bit_count() % 2] for number in range(240))
    hostile.matches(text)
    assert plain.cost < 500 < 10_000 < hostile.cost
