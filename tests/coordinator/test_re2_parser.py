"""Patterns that are refused, with the message of RE2/J."""

from __future__ import annotations

import re

import pytest

from headrace.coordinator.re2_matcher import BadPattern, LinearPattern


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
def test_invalid_patterns_are_refused_with_re2j_messages(pattern: str, why: str) -> None:
    with pytest.raises(BadPattern, match=f"^{re.escape(why)}$"):
        LinearPattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a)", "(" * 200 + ")" * 200, "((a{100}){100}){100}", "(((((){1000}){1000}){1000}){1000}){1000}", "a" * 8_001],
)
def test_patterns_beyond_the_bounds_are_refused(pattern: str) -> None:
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
        ("(?i)[A-Z]", "ß", False),  # Python's "ß".upper() is "SS"
        ("(?i)[\\pN]", "ß", False),
        ("(?i)ß", "ẞ", True),
        ("(?i)s", "ſ", True),
        ("(?i)[a-z]", "İ", False),
        ("a|", "", True),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_syntax_unknown_to_python_re(pattern: str, text: str, matches: bool) -> None:
    assert LinearPattern(pattern).matches(text) is matches
