"""The doctor's report: the story, corrections and replays in text and JSON, and names of strangers."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.cli.doctor.recording import RECORDINGS, Recording

from headrace.cli.doctor.corrections import correct_settings
from headrace.cli.doctor.group_events import group_events
from headrace.cli.doctor.group_facts import collect_facts
from headrace.cli.doctor.report import Report, report_document, report_lines, tell_story
from headrace.cli.doctor.what_if import replay_finding


def report_of(name: str) -> Report:
    """Return the whole report of a recording."""
    recording = Recording.read(RECORDINGS / f"{name}.json.gz")
    events, findings = group_events(recording.records, recording.group), recording.diagnose()
    facts = collect_facts(events)
    corrections = {each.cause: correct_settings(each, facts) for each in findings}
    replays = {
        each.cause: replay_finding(each, facts, corrections[each.cause], partitions=len(recording.state.partitions))
        for each in findings
    }
    return Report(
        group_id=recording.group,
        begin_ms=events[0].at_ms,
        end_ms=recording.state.at_ms,
        events=events,
        findings=findings,
        state=recording.state,
        corrections={cause: found for cause, found in corrections.items() if found is not None},
        what_ifs={cause: found for cause, found in replays.items() if found is not None},
    )


def test_the_story_of_a_slow_batch_names_members_cause_and_state() -> None:
    story = tell_story(report_of("slow-batch-java"), str)
    assert "calm, slow (3 times) joined, slow (2 times) left within 20 s; 6 rebalances." in story[0]
    assert story[1].startswith("Most likely cause: Members left because max.poll.interval.ms passed")
    assert story[2] == "The group is Stable now, 0 records behind the end of its 4 partitions."


def test_the_text_has_the_corrected_settings_and_the_replays() -> None:
    lines = [line.strip() for line in report_lines(report_of("slow-batch-java"), str)]
    assert lines.index("# was: max.poll.interval.ms=4000") + 1 == lines.index("max.poll.interval.ms=20000")
    rows = [line.split() for line in lines[lines.index(next(each for each in lines if each.startswith("settings "))) :]]
    assert rows[1][:4] == ["as", "it", "was", "4"]
    assert rows[2][:2] == ["max.poll.interval.ms=20000", "0"]


def test_the_document_is_json_with_all_parts() -> None:
    document = json.loads(json.dumps(report_document(report_of("rolling-java"))))
    finding = document["findings"][0]
    assert finding["correction"]["changes"]["group.instance.id"] == "${HOSTNAME}"
    assert [row[1]["rebalances"] for row in finding["what_if"]["rows"]][:2] == [6, 0]
    assert document["events"][0]["kind"] == "rebalance"
    assert document["state"]["state"] == "Stable"


def test_a_healthy_group_has_a_story_without_a_cause() -> None:
    lines = report_lines(report_of("static-java"), str)
    assert lines[0].endswith("0 findings")
    assert "No cause that should be prevented was found." in lines


def test_control_characters_of_names_do_not_reach_the_terminal() -> None:
    report = report_of("rolling-java")
    hostile = [replace(event, client_id="\x1b[2Jred\r\n") for event in report.events]
    text = "\n".join(report_lines(replace(report, events=hostile), str))
    assert "\x1b" not in text
    assert "\r" not in text
