"""The table of incidents in `docs/how-to/diagnose.md`; `python -m tests.cli.doctor.incident_table` prints it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.cli.doctor.recording import RECORDINGS, Recording

__all__ = ["PAGE", "table"]

PAGE = Path(__file__).parents[3] / "docs/how-to/diagnose.md"
BROKERS = {"kafka": "Apache Kafka 4.3.1", "headrace": "Headrace"}


def table(recordings: Mapping[str, Recording]) -> list[str]:
    """Return one row per recording: the incidents with the causes that are named, then the healthy runs."""
    rows = ["| incident | clients | broker | findings, the first one first |", "|---|---|---|---|"]
    for recording in sorted(recordings.values(), key=lambda each: (not each.cause, each.cause, each.group)):
        named = ", ".join(f"`{finding.cause}`" for finding in recording.diagnose()) or "none"
        rows.append(f"| {recording.title} | {recording.clients} | {BROKERS[recording.broker]} | {named} |")
    return rows


if __name__ == "__main__":
    found = sorted(RECORDINGS.glob("*.json.gz"))
    print("\n".join(table({path.name: Recording.read(path) for path in found})))
