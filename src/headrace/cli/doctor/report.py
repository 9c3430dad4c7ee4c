"""The doctor's report of one group: the story in words, findings with corrections and replays, the timeline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.cli.advice.situation import in_words
from headrace.cli.doctor.corrections import Correction
from headrace.cli.doctor.findings import Finding, event_line
from headrace.cli.doctor.group_events import GroupEvent
from headrace.cli.doctor.group_state import GroupState
from headrace.cli.doctor.member_data import MemberData
from headrace.cli.doctor.recorded_history import PartitionTotal, RecordedStep, step_lines, total_lines

if TYPE_CHECKING:
    from headrace.cli.doctor.what_if import WhatIf

__all__ = ["Report", "correction_lines", "history_sections", "report_document", "report_lines", "tell_story"]

# A timeline is for reading; JSON has all of it.
MOST_EVENTS = 40
MOST_SENTENCES = 12
MOST_MEMBERS = 10
MOST_PARTITIONS = 20
# Events that are closer than this belong to one step of the story.
STEP_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Diagnosis of one group.

    Attributes:
        group_id: The group.
        begin_ms: Beginning of the time that was looked at.
        end_ms: Its end.
        events: The group's changes in that time.
        findings: Findings, the most important one first.
        state: The group's state at the end.
        corrections: Corrected settings by cause.
        what_ifs: Replays by cause.
        member_data: User data of the members of a classic group.
        steps: The recorder's steps of the group in that time; empty without a recorder.
        standstill: Standstill of each partition in that time, the longest first.
    """

    group_id: str
    begin_ms: int
    end_ms: int
    events: Sequence[GroupEvent]
    findings: Sequence[Finding]
    state: GroupState
    corrections: dict[str, Correction] = field(default_factory=dict)
    what_ifs: dict[str, WhatIf] = field(default_factory=dict)
    member_data: Sequence[MemberData] = ()
    steps: Sequence[RecordedStep] = ()
    standstill: Sequence[PartitionTotal] = ()


def report_document(report: Report) -> dict[str, Any]:
    """Return the report as the document that `--json` prints."""
    return {
        "group_id": report.group_id,
        "begin_ms": report.begin_ms,
        "end_ms": report.end_ms,
        "story": tell_story(report, str),
        "findings": [
            {
                **asdict(finding),
                "correction": _document(report.corrections.get(finding.cause)),
                "what_if": _document(report.what_ifs.get(finding.cause)),
            }
            for finding in report.findings
        ],
        "events": [asdict(event) for event in report.events],
        "state": asdict(report.state),
        "member_data": [asdict(each) for each in report.member_data],
        "steps": [asdict(each) for each in report.steps],
        "standstill": [asdict(each) for each in report.standstill],
    }


def _document(part: Correction | WhatIf | None) -> dict[str, Any] | None:
    return None if part is None else asdict(part)


def report_lines(report: Report, time_text: Callable[[int], str]) -> list[str]:
    """Return the report for a terminal."""
    rebalances = sum(event.kind == "rebalance" for event in report.events)
    lines = [f"{report.group_id}: {rebalances} rebalances, {len(report.findings)} findings", ""]
    lines += tell_story(report, time_text)
    for number, finding in enumerate(report.findings, 1):
        lines += ["", f"{number}. {finding.cause}: {finding.summary}"]
        lines += [f"   {text}" for text in finding.evidence]
        lines.append(f"   fix  {finding.fix}")
        if (correction := report.corrections.get(finding.cause)) is not None:
            lines += [f"   {line}" for line in correction_lines(correction)]
        if (what_if := report.what_ifs.get(finding.cause)) is not None:
            # The simulator is loaded only where it has run.
            from headrace.cli.doctor.what_if import what_if_lines

            lines += [f"   {line}" for line in what_if_lines(what_if)]
    if report.member_data:
        lines += ["", *_member_data_lines(report.member_data)]
    for title, found in history_sections(report, time_text):
        lines += ["", title, *(f"  {line}" for line in found)]
    if report.events:
        left_out = max(0, len(report.events) - MOST_EVENTS)
        lines += ["", "Timeline" + (f" (the last {MOST_EVENTS} of {len(report.events)} events)" if left_out else "")]
        lines += [f"  {event_line(event, time_text)}" for event in report.events[left_out:]]
    return [_printable(line) for line in lines]


def history_sections(report: Report, time_text: Callable[[int], str]) -> list[tuple[str, list[str]]]:
    """Return the sections of the recorder's history: a title and lines each, without those that are empty."""
    steps, totals = step_lines(report.steps, time_text), total_lines(report.standstill)
    sections = (
        ("Rebalances and their cost, from the recorder", steps, MOST_EVENTS, -1),
        ("Standstill by partition, from the recorder", totals, MOST_PARTITIONS, 1),
    )
    found = []
    for title, lines, most, end in sections:
        shown = lines[:most] if end > 0 else lines[-most:]
        left_out = f" ({len(shown)} of {len(lines)})" if len(shown) < len(lines) else ""
        if shown:
            found.append((f"{title}{left_out}", shown))
    return found


def _printable(line: str) -> str:
    """Replace control characters: names and logs come from strangers, and a terminal obeys escape sequences."""
    return "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in line)


def _member_data_lines(member_data: Sequence[MemberData]) -> list[str]:
    shown = member_data[:MOST_MEMBERS]
    more = f", the first {len(shown)} of {len(member_data)} members" if len(shown) < len(member_data) else ""
    lines = [f"User data of the members ({member_data[0].protocol}{more})"]
    for each in shown:
        lines.append(f"  {each.client_id} ({each.member_id})")
        lines += [
            f"    {word} {text}" for word, text in (("sent    ", each.sent), ("received", each.received)) if text != "-"
        ]
    return lines


def correction_lines(correction: Correction) -> list[str]:
    """Return the corrected settings as lines of a properties file; the old values are comments."""
    lines = [f"# corrected for {correction.situation}"]
    for name, value in correction.changes.items():
        if name in correction.given:
            lines.append(f"# was: {name}={correction.given[name]}")
        if value is not None:
            lines.append(f"{name}={value}")
    return lines


def tell_story(report: Report, time_text: Callable[[int], str]) -> list[str]:
    """Return the story in sentences: the steps in order of time, then the cause and the present state."""
    if not report.events:
        story = ["No change of the group is recorded for this time."]
    else:
        steps = _steps(report.events)
        shown = steps if len(steps) <= MOST_SENTENCES else steps[-MOST_SENTENCES:]
        story = [f"{len(steps) - len(shown)} earlier steps are in the timeline."] if shown is not steps else []
        story += [_tell_step(step, time_text) for step in shown]
    if report.findings:
        story.append(f"Most likely cause: {report.findings[0].summary}")
    else:
        story.append("No cause that should be prevented was found.")
    lag = sum(max(0, each.end - each.committed) for each in report.state.partitions)
    if report.state.state:
        behind = f", {lag} records behind the end of its {len(report.state.partitions)} partitions"
        story.append(f"The group is {report.state.state} now{behind if report.state.partitions else ''}.")
    return story


def _steps(events: Sequence[GroupEvent]) -> list[list[GroupEvent]]:
    steps: list[list[GroupEvent]] = []
    for event in events:
        if not steps or event.at_ms - steps[-1][-1].at_ms > STEP_MS:
            steps.append([])
        steps[-1].append(event)
    return steps


def _tell_step(step: Sequence[GroupEvent], time_text: Callable[[int], str]) -> str:
    counts = Counter(event.kind for event in step)
    parts = []
    for kind, verb in (("joined", "joined"), ("left", "left"), ("replaced", "came back under the same instance id")):
        names = [event.client_id for event in step if event.kind == kind]
        if names:
            parts.append(f"{_names(names)} {verb}")
    if counts["subscription"]:
        parts.append(f"{counts['subscription']} members changed their topics")
    if counts["metadata"]:
        parts.append("partitions of the topics changed")
    if counts["topology"]:
        parts.append("the topology changed")
    told = ", ".join(parts) or "the group began a new generation"
    lasting_ms = step[-1].at_ms - step[0].at_ms
    within = f" within {in_words(lasting_ms // 1_000 * 1_000)}" if lasting_ms >= 1_000 else ""
    rebalances = counts["rebalance"]
    return f"{time_text(step[0].at_ms)}: {told}{within}; {rebalances} rebalance{'' if rebalances == 1 else 's'}."


def _names(names: Sequence[str]) -> str:
    counted = Counter(names)
    shown = [name + (f" ({count} times)" if count > 1 else "") for name, count in list(counted.items())[:4]]
    return ", ".join(shown) + (f" and {len(counted) - 4} more" if len(counted) > 4 else "")
