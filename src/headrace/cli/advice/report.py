"""Output of `headrace advise`: a row for each finding, or the same as a JSON document."""

from __future__ import annotations

from headrace.cli.advice.advise import Advice
from headrace.cli.advice.finding import Finding
from headrace.cli.advice.situation import Situation, in_words
from headrace.cli.text_table import align

__all__ = ["advice_document", "advice_lines", "situation_words"]

_PACKAGE = "org.apache.kafka.clients.consumer."  # the file has it, a row need not


def situation_words(situation: Situation) -> str:
    """`a classic group; batches up to 4 min; instances keep their names`."""
    parts = [f"a {situation.kind} group"]
    if situation.worst_batch_ms is not None:
        parts.append(f"batches up to {in_words(situation.worst_batch_ms)}")
    if situation.longest_pause_ms is not None:
        parts.append(f"pauses up to {in_words(situation.longest_pause_ms)}")
    if situation.restart_ms is not None:
        parts.append(f"restarts of {in_words(situation.restart_ms)}")
    if situation.deploy is not None:
        parts.append("instances keep their names" if situation.deploy == "kept-names" else "names change at a restart")
    if situation.hands_over:
        parts.append("records are handed to other threads")
    if situation.state_bytes is not None:
        parts.append(f"{situation.state_bytes / 1e9:g} GB of state")
    return "; ".join(parts)


def advice_lines(advice: Advice) -> list[str]:
    """Return the findings as aligned lines, each with its reason below it."""
    rows = [(_what(finding), finding.word, finding.rule, _change(finding)) for finding in advice.findings]
    lines = []
    for head, finding in zip(align(rows, indent="  "), advice.findings, strict=True):
        lines += [head, f"      {finding.reason}"]
    return lines


def _what(finding: Finding) -> str:
    return finding.setting if finding.given is None else f"{finding.setting}={finding.given.replace(_PACKAGE, '')}"


def _change(finding: Finding) -> str:
    told = []
    for setting, value in finding.changes.items():
        name = "" if setting == finding.setting else f"{setting}="
        told.append("out" if value is None else f"{name}{value.replace(_PACKAGE, '')}")
    return "→ " + ", ".join(told) if told else "yours to decide"


def advice_document(advice: Advice, situation: Situation, file: str, written: str | None) -> dict[str, object]:
    """Return the findings as the document that `--json` prints."""
    return {
        "file": file,
        "client": advice.corrected.client,
        "group": situation.kind,
        "stage": advice.stage,
        "findings": [
            {
                "rule": finding.rule,
                "setting": finding.setting,
                "given": finding.given,
                "level": finding.level,
                "word": finding.word,
                "reason": finding.reason,
                "changes": finding.changes,
            }
            for finding in advice.findings
        ],
        "written": written,
    }
