"""The verdict on the screen: repeats are told, what is lost or wrong fails, and nothing is hidden."""

from __future__ import annotations

from typing import Any

from headrace.cli.commands.verify import sink_lines, verdict_line
from headrace.cli.demo.replay import Departures, FlightYear
from headrace.cli.demo.steps import figures, kept_guarantee, shortfalls
from headrace.spark.verification.verdict import SinkVerdict, Verdict

YEAR = FlightYear(days=(), by_origin={"JFK": Departures(flights=12, departed=10, delay_minutes=25.0)}, by_carrier={})


def document(guarantee: str = "at_least_once", **sink: Any) -> dict[str, Any]:
    known: dict[str, Any] = {"topic": "by-origin", "kind": "table", "expected": 3, "found": 3, "equal": 3} | sink
    verdict = Verdict(
        app_name="flight-delays",
        guarantee=guarantee,
        records=0,
        bad_records=0,
        waiting=0,
        sinks=(SinkVerdict(**known),),
    )
    return verdict.as_document()


def test_equal() -> None:
    lines = sink_lines(document())
    assert lines[1].split() == ["by-origin", "table,", "keys", "3", "3", "3", "0", "0"]
    assert "0 lost   0 repeated" in lines[2]
    assert verdict_line(document()).startswith("EQUAL:")
    assert shortfalls(document(), YEAR, {"JFK": {"flights": 10, "mean_delay": 2.5}}) == []


def test_repeated_records_are_counted_and_reported() -> None:
    repeated = document(equal=2, repeated=7, examples=("JFK: 7 counted again",))
    lines = sink_lines(repeated)
    assert lines[1].split()[-2:] == ["1", "0"]
    assert "0 lost   7 repeated" in lines[2]
    assert lines[3] == "  by-origin: JFK: 7 counted again"
    assert "7 repeated, allowed after a kill: at least once" in verdict_line(repeated)
    assert repeated["passed"]
    assert shortfalls(repeated, YEAR, {"JFK": {"flights": 17, "mean_delay": 2.6}}) == []
    assert figures(YEAR, {"JFK": {"flights": 17}})[0].endswith("the stream counted 17 (+7)")


def test_a_repeat_breaks_exactly_once() -> None:
    repeated = document("exactly_once_v2", equal=2, repeated=7)
    assert not repeated["passed"]
    assert verdict_line(repeated).startswith("DIFFERS")
    assert kept_guarantee(repeated, passed=False) == "exactly_once_v2: broken, 7 repeated"


def test_the_guarantee_is_claimed_when_it_was_seen() -> None:
    once = document("exactly_once_v2")
    assert kept_guarantee(once, passed=True).endswith("nothing lost and nothing repeated, through the kill")
    assert kept_guarantee(once, passed=False).endswith("not shown, see below")
    assert kept_guarantee(document(), passed=True) == "at_least_once: nothing repeated this time"
    assert kept_guarantee(document(equal=2, repeated=1200), passed=True).startswith("at_least_once: 1,200 repeated")


def test_lost_or_wrong_results_fail_the_proof() -> None:
    wrong = document(equal=1, differ=1, missing=1, lost=2, examples=("a", "b", "c", "d"))
    assert not wrong["passed"]
    assert verdict_line(wrong).startswith("DIFFERS")
    assert [line for line in sink_lines(wrong) if line.startswith("  by-origin: ")] == [
        f"  by-origin: {x}" for x in "abc"
    ]
    assert shortfalls(document(), YEAR, {"JFK": {"flights": 9, "mean_delay": 2.5}}) == ["JFK: 1 departures are missing"]
    assert shortfalls(document(), YEAR, {}) == ["JFK: 10 departures are missing"]
    assert "should be 2.500" in shortfalls(document(), YEAR, {"JFK": {"flights": 10, "mean_delay": 9.0}})[0]


def test_repeats_that_the_verdict_does_not_tell_fail() -> None:
    assert (
        "which the verdict does not tell"
        in shortfalls(document(), YEAR, {"JFK": {"flights": 11, "mean_delay": 2.5}})[0]
    )


def test_records_lost_on_the_way_in_fail() -> None:
    missing = document() | {"records": 3}
    assert "the topic holds 3 records" in shortfalls(missing, YEAR, {"JFK": {"flights": 10, "mean_delay": 2.5}})[0]


def test_cannot_tell() -> None:
    verdict = Verdict(
        app_name="a",
        guarantee="at_least_once",
        records=0,
        bad_records=0,
        waiting=0,
        sinks=(),
        undecided="input is gone",
    )
    assert verdict_line(verdict.as_document()) == "CANNOT TELL: input is gone."
