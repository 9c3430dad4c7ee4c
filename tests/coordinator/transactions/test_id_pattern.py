"""Patterns of transactional ids: Python's `re` is the judge where both speak the same language."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.coordinator.transactions.id_pattern import BadPattern, IdPattern

ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", "\\d", "\\.", "[a-c]", "^", "$", "()", "-", "[b\\-]"])
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
@given(PATTERNS, st.lists(st.text("abc1.-", max_size=6), max_size=8))
def test_it_matches_what_re_matches(pattern: str, texts: list[str]) -> None:
    ours = IdPattern(pattern)
    for text in texts:
        assert ours.matches(text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@pytest.mark.parametrize(
    "pattern", ["(", "a)", "*a", "[a", "\\q", "a**", "(?i)a", "a{1001}", "((a{100}){100}){100}", "a{3,2}", "\\1", "x\\"]
)
def test_what_is_no_pattern_or_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        IdPattern(pattern)


def test_no_pattern_backtracks() -> None:
    """Python's `re` would not come back from this one."""
    assert not IdPattern("(a+)+b").matches("a" * 10_000)
    assert IdPattern("(a*)*(a|aa)+").matches("a" * 10_000)
