"""Regular expressions in linear time: Python's `re` is the judge where both speak the same language."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.coordinator.re2_matcher import BadPattern, LinearPattern

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


# What RE2/J 1.8 says of each, and we say the same.
@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing closing )"),
        ("[a", "missing closing ]"),
        ("*a", "missing argument to repetition operator"),
        ("{2}", "missing argument to repetition operator"),
        ("a**", "invalid nested repetition operator"),
        ("a{2}{3}", "invalid nested repetition operator"),
        ("a{1001}", "invalid repeat count"),
        ("a{3,2}", "invalid repeat count"),
        ("x\\", "trailing backslash at end of expression"),
        ("\\q", "invalid escape sequence"),
        ("\\1", "invalid escape sequence"),
        ("\\x{110000}", "invalid escape sequence"),
        ("[b-a]", "invalid character class range"),
        ("[[:what:]]", "invalid character class range"),
        ("\\p{what}", "invalid character class range"),
        ("(?P<>a)", "invalid named capture"),
        ("(?=a)", "invalid or unsupported Perl syntax"),
        ("(?z)", "invalid or unsupported Perl syntax"),
    ],
)
def test_what_is_no_pattern_is_refused_in_the_words_of_re2j(pattern: str, why: str) -> None:
    with pytest.raises(BadPattern, match=f"^{re.escape(why)}$"):
        LinearPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a)", "(" * 200 + ")" * 200, "((a{100}){100}){100}", "(((((){1000}){1000}){1000}){1000}){1000}", "a" * 8_001],
)
def test_what_is_beyond_the_bounds_is_refused(pattern: str) -> None:
    with pytest.raises(BadPattern):
        LinearPattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("(?i)Logs-.*", "lOGS-x", True),
        ("\\Qa.b\\E+", "a.bbb", True),
        ("\\Qa.b", "axb", False),
        ("[[:alpha:]]+", "abc", True),
        ("[[:^alpha:]]+", "12", True),
        ("[^[:digit:]x]", "x", False),
        ("\\p{Lu}\\pN", "A1", True),
        ("\\P{Lu}", "A", False),
        ("(?P<name>a)(?<other>b)", "ab", True),
        ("\\x41\\x{42}\\103", "ABC", True),
        ("[a-b-c]+", "a-c", True),
        ("a.c", "a\nc", False),
        ("(?s)a.c", "a\nc", True),
        ("(?m)a$\n^b", "a\nb", True),
        ("a$\n^b", "a\nb", False),
        ("\\Aa\\z", "a", True),
        ("a{,2}", "a{,2}", True),
        ("(?i:a)b", "AB", False),
        ("a|", "", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_what_re_does_not_know(pattern: str, text: str, matches: bool) -> None:
    assert LinearPattern(pattern).matches(text) is matches


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
