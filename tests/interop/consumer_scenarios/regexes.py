"""Subscriptions by regular expression."""

from __future__ import annotations

from tests.interop.consumer_script import MINE, ConsumerScript, scenario


@scenario({"logs-a": 3, "other": 1})
def one_regex(s: ConsumerScript) -> None:
    """One topic: which of two comes first is a matter of their ids."""
    s.join("a joins", "a", regex=s.regex("logs-.*"))
    s.beat_until("a is told", "a", lambda answer: s.count("a") == 3)
    s.describe("resolved")
    s.join("b joins with the same", "b", regex=s.regex("logs-.*"))
    s.beat("a revokes", "a")
    s.beat("a acknowledges", "a", owned=MINE)
    s.beat("b takes", "b")
    s.describe("shared")
    s.leave("a leaves", "a")
    s.beat("b takes all", "b")
    s.leave("b leaves", "b")
    s.describe("empty")
    s.delete_group("deleted")


@scenario({"logs-a": 2, "in": 2})
def regex_and_names(s: ConsumerScript) -> None:
    s.join("joins with both", "a", "in", regex=s.regex("logs.*"))
    s.beat_until("is told both", "a", lambda answer: s.count("a") == 4)
    s.describe("both")
    s.beat("no regex any more", "a", regex="", owned=MINE)
    s.beat("acknowledges", "a", owned=MINE)
    s.describe("names alone")
    s.beat("no names either", "a", names=(), owned=MINE)
    s.beat("acknowledges again", "a", owned=MINE)
    s.describe("nothing")


@scenario({"a1": 1, "a2": 1, "b1": 1})
def different_regexes(s: ConsumerScript) -> None:
    s.join("a joins", "a", regex=s.regex("a."))
    s.beat_until("a has two", "a", lambda answer: s.count("a") == 2)
    s.beat("a stays", "a", regex=s.regex("a."), owned=MINE)
    s.join("b by name", "b", "b1")
    s.describe("a regex and a name")
    s.beat("a", "a", owned=MINE)
    s.beat("b", "b", owned=MINE)
    s.describe("settled")


@scenario({"in": 1})
def a_regex_that_matches_nothing(s: ConsumerScript) -> None:
    s.join("joins", "a", regex="nothing-like-this")
    s.beat("beats", "a", owned=MINE)
    s.describe("nothing")
    s.leave("leaves", "a")
    s.describe("empty")


@scenario({"in": 1})
def an_empty_regex(s: ConsumerScript) -> None:
    s.join("joins", "a", regex="")
    s.describe("nothing")
    s.beat("beats", "a", owned=MINE)


@scenario({"in": 1})
def invalid_regexes(s: ConsumerScript) -> None:
    for number, pattern in enumerate(
        (
            "[",
            "(",
            "a)",
            "*",
            "a**",
            "a{2,1}",
            "a{1001}",
            "\\",
            "\\8",
            "\\y",
            "(?<",
            "(?P<n",
            "(?P<n>a)(?P<n>b)",
            "(?=a)",
            "[b-a]",
            "[[:what:]]",
            "\\p{what}",
            "(?z)",
            "a(?",
            "x{1000}{1000}",
            "(a)\\1",
            "[\\d-z]",
            "(?i",
            "\\x{110000}",
        )
    ):
        s.join(f"pattern {number}: {pattern}", "a", regex=pattern)
    s.describe("nobody joined")
    s.join("joins", "a", "in")
    s.beat("an invalid one later", "a", regex="[")
    s.describe("as it was")


@scenario({"in": 1, "IN": 1, "in-1": 1, "in_2": 1, "in.3": 1})
def valid_regexes(s: ConsumerScript) -> None:
    """Each by a member of its own; what it stands for is in its target."""
    for number, pattern in enumerate(
        (
            "(?i)in",
            "in",
            "in[-_.]\\d",
            "in(-1|_2)",
            "\\w+",
            "i.",
            "in[[:punct:]].",
            "in\\.3|IN",
            "(?:i)(?P<x>n)",
            "in.?.?",
            "[^I]n.*",
            "\\Qin.3\\E",
            "^in$",
            "in{1}",
            "i\\x6e",
            "\\pL+",
            "in\\b.*",
            "(in)?",
            "in.{2}",
            "[a-z-]+1",
        )
    ):
        whole = s.regex(f"(?:{pattern})") if not pattern.startswith("^") else "^" + s.regex(pattern[1:])
        s.join(f"pattern {number}: {pattern}", "a", regex=whole)
        s.beat_until(f"resolved {number}: {pattern}", "a", lambda answer: s.count("a") > 0)
        s.describe(f"described {number}: {pattern}")
        s.leave(f"leaves {number}", "a")
        s.delete_group(f"deleted {number}")
