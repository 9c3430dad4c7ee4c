"""`headrace doctor`: why a group is in trouble, from the coordinator's records, its state and client logs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.advice.situation import duration_ms
from headrace.cli.options import bootstrap_option, command_config_option, json_option, open_admin
from headrace.cli.terminal import data, echo_err, print_json

if TYPE_CHECKING:
    from headrace.cli.doctor.client_logs import LogLine
    from headrace.cli.doctor.corrections import Correction
    from headrace.cli.doctor.findings import Finding
    from headrace.cli.doctor.group_facts import GroupFacts
    from headrace.cli.doctor.what_if import WhatIf

__all__ = ["command"]


class _Duration(click.ParamType[int]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return value if isinstance(value, int) else duration_ms(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command("doctor")
@click.option("--group", "group_id", required=True, metavar="ID", help="The group, of any type.")
@click.option(
    "--since", "since_ms", type=_Duration(), default="24h", show_default=True, metavar="TIME", help="How far back."
)
@click.option(
    "--logs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A log of a client or a broker; may be repeated.",
)
@click.option(
    "--what-if", "with_what_if", is_flag=True, help="Replay the incident in the simulator, with and without the fix."
)
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write a page, too.")
@bootstrap_option
@command_config_option
@json_option
def command(
    group_id: str,
    since_ms: int,
    logs: tuple[Path, ...],
    with_what_if: bool,
    html: Path | None,
    bootstrap_servers: str,
    command_config: Path | None,
    as_json: bool,
) -> None:
    """Name the causes of a group's trouble, the most important one first, with evidence and what prevents them.

    Reads the coordinator's records in __consumer_offsets, which every Kafka has, the group's positions and open
    transactions, and logs that you name. It changes nothing. The records reach back as far as compaction has left them.
    Where a recorder of groups runs, the report has authors, reasons, standstill by partition and rates, too.

    \b
      headrace doctor --group orders
      headrace doctor --group orders --since 2h --logs consumer-1.log --logs broker.log
      headrace doctor --group orders --what-if --html orders.html
    """
    from headrace.cli.doctor.client_logs import find_causes
    from headrace.cli.doctor.corrections import correct_settings
    from headrace.cli.doctor.findings import diagnose
    from headrace.cli.doctor.group_events import group_events, read_group_records
    from headrace.cli.doctor.group_facts import collect_facts
    from headrace.cli.doctor.group_state import read_group_state
    from headrace.cli.doctor.html_report import html_report
    from headrace.cli.doctor.member_data import newest_member_data
    from headrace.cli.doctor.recorded_history import join_events, read_history, recorded_steps, standstill_totals
    from headrace.cli.doctor.report import Report, report_document, report_lines
    from headrace.client.broker_errors import unknown_group_error

    now_ms = int(time.time() * 1000)
    with open_admin(bootstrap_servers, client_id="headrace-doctor", command_config=command_config) as admin:
        records = list(read_group_records(admin, group_id))
        history = read_history(admin, group_id)
        events = join_events(group_events(records, group_id), history)
        if not events:
            listed = admin.list_groups()
            if group_id not in {group.group_id for group in listed}:
                raise unknown_group_error(group_id, listed, bootstrap_servers)
        state = read_group_state(admin, group_id, now_ms=now_ms)
    begin_ms = now_ms - since_ms
    history = [entry for entry in history if entry.at_ms >= begin_ms]
    recent = [event for event in events if event.at_ms >= begin_ms]
    lines: list[LogLine] = []
    for path in logs:
        with path.open(encoding="utf-8", errors="replace") as log:
            lines += find_causes(log, file=path.name)
    findings = diagnose(recent, lines, state, time_text=_time)
    facts = collect_facts(events, since_ms=begin_ms)
    corrections = {finding.cause: correct_settings(finding, facts) for finding in findings}
    report = Report(
        group_id=group_id,
        begin_ms=begin_ms,
        end_ms=now_ms,
        events=recent,
        findings=findings,
        state=state,
        corrections={cause: found for cause, found in corrections.items() if found is not None},
        member_data=newest_member_data(records, group_id),
        steps=recorded_steps(history),
        standstill=standstill_totals(history),
        what_ifs=_replay(findings, facts, corrections, len(state.partitions)) if with_what_if else {},
    )
    if html is not None:
        html.write_text(html_report(report, _time), encoding="utf-8")
        echo_err(f"The report is in {html}.")
    if as_json:
        print_json(report_document(report))
        return
    for line in report_lines(report, _time):
        data(line)


def _replay(
    findings: list[Finding], facts: GroupFacts, corrections: dict[str, Correction | None], partitions: int
) -> dict[str, WhatIf]:
    from headrace.cli.doctor.what_if import replay_finding

    replays = {
        finding.cause: replay_finding(finding, facts, corrections[finding.cause], partitions=partitions)
        for finding in findings
    }
    return {cause: found for cause, found in replays.items() if found is not None}


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
