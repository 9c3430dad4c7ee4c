"""The last act: `headrace verify` in a process of its own, and the figures of the data set beside the stream's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from headrace.child_process import python_module
from headrace.cli.demo.flights import Departures, FlightYear
from headrace.cli.demo.stage import Stage, example_path, spark_environment
from headrace.cli.verdict_report import repeats
from headrace.errors import HeadraceError

__all__ = ["figures", "kept_guarantee", "recompute", "shortfalls"]

TIMEOUT_SECONDS = 300


def recompute(stage: Stage) -> dict[str, Any]:
    """Run `headrace verify --json` and return its document. Raises HeadraceError if it printed none."""
    command = python_module("headrace.cli.main", "verify", str(example_path()), "--json")
    command += ["--bootstrap-server", stage.bootstrap_servers]
    with stage.log.open("ab") as log:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env=spark_environment(),
        )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        what = f"headrace verify ended with exit code {done.returncode} and without a verdict"
        raise HeadraceError("instance-failed", what, "its words are in the log") from None
    return document


def figures(year: FlightYear, airports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per airport: the data set's own figures, and what the stream says where it differs by repeats."""
    return [f"{name}  {_own(known)}{_beside(known, airports.get(name))}" for name, known in year.by_origin.items()]


def _own(known: Departures) -> str:
    left = f"{known.flights:,} flights planned, {known.departed:,} left"
    return f"{left}, {known.mean_delay:.3f} min late on average"


def _beside(known: Departures, row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "   the stream has no row"
    more = int(row["flights"]) - known.departed
    if more:
        return f"   the stream counted {row['flights']:,} ({more:+,})"
    return ""


def shortfalls(document: Mapping[str, Any], year: FlightYear, airports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the deviations, counted without Spark: records lost on input, departures missing or wrong in the results.

    More departures than there were are repeats; they have to be confessed by the verdict.
    """
    wrong = []
    if document["records"] != year.flights:
        wrong.append(f"the topic holds {document['records']:,} records, {year.flights:,} flights were sent")
    for name, known in year.by_origin.items():
        row = airports.get(name)
        more = int(row["flights"]) - known.departed if row is not None else -known.departed
        if more < 0:
            wrong.append(f"{name}: {-more:,} departures are missing")
        elif more > 0 and not repeats(document):
            wrong.append(f"{name}: {more:,} departures too many, which the verdict does not tell")
        elif not more and row is not None and abs(row["mean_delay"] - known.mean_delay) > 0.00051:
            wrong.append(f"{name}: the mean delay is {row['mean_delay']}, it should be {known.mean_delay:.3f}")
    return wrong


def kept_guarantee(document: Mapping[str, Any], *, passed: bool) -> str:
    """Return the guarantee that was configured and the verifier's result. Only what was measured is reported."""
    guarantee, again = document["guarantee"], repeats(document)
    if guarantee == "at_least_once":
        return f"{guarantee}: {f'{again:,} repeated, allowed after a kill' if again else 'nothing repeated this time'}"
    if again:
        return f"{guarantee}: broken, {again:,} repeated"
    return f"{guarantee}: {'nothing lost and nothing repeated, through the kill' if passed else 'not shown, see below'}"
