"""Facts of a group's events, corrected settings by the rules of advise, and replays of recorded incidents."""

from __future__ import annotations

import pytest
from tests.cli.doctor.recording import RECORDINGS, Recording
from tests.cli.doctor.test_report import report_of

from headrace.cli.doctor.group_events import GroupEvent, group_events
from headrace.cli.doctor.group_facts import Absence, collect_facts


def event(kind: str, at_ms: int, client: str) -> GroupEvent:
    return GroupEvent(at_ms=at_ms, kind=kind, client_id=client, member_id=client, client_host="h")  # type: ignore[arg-type]


def test_an_absence_ends_with_the_return_of_the_client_or_with_its_successor() -> None:
    history = [event("joined", 0, "a"), event("joined", 0, "b"), event("left", 10, "a"), event("left", 20, "b")]
    history += [event("joined", 25, "c"), event("joined", 40, "a")]
    facts = collect_facts(history)
    assert facts.absences == (
        Absence(client="b", left_ms=20, duration_ms=5),
        Absence(client="a", left_ms=10, duration_ms=30),
    )
    assert facts.members == 2
    later = collect_facts(history, since_ms=15)
    assert later.absences == (Absence(client="b", left_ms=20, duration_ms=5),)
    assert later.members == 2


def test_facts_hold_the_settings_that_records_hold() -> None:
    recording = Recording.read(RECORDINGS / "slow-batch-java.json.gz")
    facts = collect_facts(group_events(recording.records, recording.group))
    assert (facts.group_type, facts.assignor, facts.members, facts.is_static) == ("classic", "range", 2, False)
    assert (facts.session_timeout_ms, facts.max_poll_interval_ms) == (3_000, 4_000)


@pytest.mark.parametrize(
    ("name", "cause", "setting"),
    [
        ("slow-batch-java", "slow-batches", "max.poll.interval.ms"),
        ("slow-batch-librdkafka", "slow-batches", "max.poll.interval.ms"),
        ("slow-batch-headrace", "slow-batches", "max.poll.interval.ms"),
        ("pause-java", "session-expired", "session.timeout.ms"),
        ("pause-librdkafka", "session-expired", "session.timeout.ms"),
        ("pause-aiokafka", "session-expired", "session.timeout.ms"),
        ("rolling-java", "rolling-deploy-without-static-members", "group.instance.id"),
        ("rolling-headrace", "rolling-deploy-without-static-members", "group.instance.id"),
    ],
)  # fmt: skip
def test_the_corrected_settings_prevent_the_replayed_incident(name: str, cause: str, setting: str) -> None:
    report = report_of(name)
    assert setting in report.corrections[cause].changes
    was, corrected = (outcome for _, outcome in report.what_ifs[cause].rows[:2])
    assert was.rebalances >= 4
    assert corrected.rebalances == 0
    assert corrected.interrupted < was.interrupted


def test_causes_that_settings_do_not_prevent_have_neither() -> None:
    for name in ("hot-partition", "full-group", "access-withdrawn", "crash-loop-aiokafka"):
        report = report_of(name)
        assert report.corrections == {}
        assert report.what_ifs == {}
