"""The doctor's judgement of incidents that were produced with real clients, and of healthy runs (recordings).

`tests/interop/doctor_incidents` provokes them, and its module `produce` writes the recordings.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from tests.cli.doctor.incident_table import PAGE, table
from tests.cli.doctor.recording import RECORDINGS, Recording
from tests.cli.doctor.test_report import report_of

from headrace.cli.doctor.causes import CAUSES
from headrace.cli.doctor.what_if import what_if_lines

FILES = sorted(RECORDINGS.glob("*.json.gz"))
ALL = {path.name.removesuffix(".json.gz"): Recording.read(path) for path in FILES}
INCIDENTS = {name: recording for name, recording in ALL.items() if recording.cause}
HEALTHY = {name: recording for name, recording in ALL.items() if not recording.cause}


@pytest.mark.parametrize("name", INCIDENTS)
def test_the_cause_of_an_incident_is_ranked_first(name: str) -> None:
    findings = INCIDENTS[name].diagnose()
    assert findings[0].cause == INCIDENTS[name].cause, findings
    assert findings[0].evidence


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_has_no_finding(name: str) -> None:
    assert HEALTHY[name].diagnose() == []


def test_recordings_cover_causes_clients_and_both_brokers() -> None:
    assert len(INCIDENTS) >= 20
    assert len(HEALTHY) >= 10
    causes = {recording.cause for recording in INCIDENTS.values()}
    # Apache Kafka 4.3.1 refuses another topology, so the change itself is in no group's history there.
    assert causes == CAUSES.keys() - {"topology-change"}
    for broker in ("kafka", "headrace"):
        clients = {each.clients for each in ALL.values() if each.broker == broker}
        assert {"Java", "librdkafka", "aiokafka", "Headrace"} <= clients, broker


def test_recordings_are_small_and_name_no_machine() -> None:
    for path, recording in zip(FILES, ALL.values(), strict=True):
        assert path.stat().st_size < 20_000, path.name
        text = "\n".join(line for lines in recording.logs.values() for line in lines)
        assert not re.search(r"/(?:root|home|work|tmp|usr)/\w", text), path.name


def test_the_events_alone_name_what_events_can_show() -> None:
    """Without logs a cause that only they name is missing, and nothing wrong is named instead."""
    for name, recording in ALL.items():
        silent = replace(recording, logs={}).diagnose()
        assert {finding.cause for finding in silent} <= {recording.cause, "flapping-member", "removed-member"}, name


def test_the_page_has_the_table_of_the_incidents() -> None:
    """`python -m tests.cli.doctor.incident_table` prints it."""
    assert "\n".join(table(ALL)) in PAGE.read_text()


def test_the_page_has_the_replay_of_the_rolling_deploy() -> None:
    what_if = report_of("rolling-java").what_ifs["rolling-deploy-without-static-members"]
    assert "```\n" + "\n".join(what_if_lines(what_if)) + "\n```" in PAGE.read_text()
