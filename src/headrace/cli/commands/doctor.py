"""`headrace doctor`: why a group is in trouble, from the coordinator's records, its state and client logs."""

from __future__ import annotations

import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.advice.situation import duration_ms
from headrace.cli.options import bootstrap_option, command_config_option, json_option, open_admin
from headrace.cli.terminal import data, print_json

if TYPE_CHECKING:
    from headrace.cli.doctor.client_logs import LogLine
    from headrace.cli.doctor.findings import Finding
    from headrace.cli.doctor.group_events import GroupEvent

__all__ = ["command"]

# A timeline is for reading; JSON has all of it.
MOST_EVENTS = 40


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
@bootstrap_option
@command_config_option
@json_option
def command(
    group_id: str,
    since_ms: int,
    logs: tuple[Path, ...],
    bootstrap_servers: str,
    command_config: Path | None,
    as_json: bool,
) -> None:
    """Name the causes of a group's trouble, the most important one first, with evidence and what prevents them.

    Reads the coordinator's records in __consumer_offsets, which every Kafka has, the group's positions and open
    transactions, and logs that you name. It changes nothing. The records reach back as far as compaction has left them.

    \b
      headrace doctor --group orders
      headrace doctor --group orders --since 2h --logs consumer-1.log --logs broker.log
    """
    from headrace.cli.doctor.client_logs import find_causes
    from headrace.cli.doctor.findings import diagnose
    from headrace.cli.doctor.group_events import group_events, read_group_records
    from headrace.cli.doctor.group_state import read_group_state
    from headrace.client.broker_errors import unknown_group_error

    now_ms = int(time.time() * 1000)
    with open_admin(bootstrap_servers, client_id="headrace-doctor", command_config=command_config) as admin:
        events = group_events(read_group_records(admin, group_id), group_id)
        if not events:
            listed = admin.list_groups()
            if group_id not in {group.group_id for group in listed}:
                raise unknown_group_error(group_id, listed, bootstrap_servers)
        state = read_group_state(admin, group_id, now_ms=now_ms)
    begin_ms = now_ms - since_ms
    recent = [event for event in events if event.at_ms >= begin_ms]
    lines: list[LogLine] = []
    for path in logs:
        with path.open(encoding="utf-8", errors="replace") as log:
            lines += find_causes(log, file=path.name)
    findings = diagnose(recent, lines, state, time_text=_time)
    if as_json:
        print_json(
            {
                "group_id": group_id,
                "findings": [asdict(finding) for finding in findings],
                "events": [asdict(event) for event in recent],
                "state": asdict(state),
            }
        )
        return
    for line in _report(group_id, recent, findings):
        data(line)


def _report(group_id: str, events: list[GroupEvent], findings: list[Finding]) -> list[str]:
    from headrace.cli.doctor.findings import event_line

    rebalances = sum(event.kind == "rebalance" for event in events)
    lines = [f"{group_id}: {rebalances} rebalances, {len(findings)} findings"]
    for number, finding in enumerate(findings, 1):
        lines += ["", f"{number}. {finding.cause}: {finding.summary}"]
        lines += [f"   {text}" for text in finding.evidence]
        lines.append(f"   fix  {finding.fix}")
    if not findings:
        lines.append("No cause that should be prevented was found.")
    if events:
        left_out = max(0, len(events) - MOST_EVENTS)
        lines += ["", "Timeline" + (f" (the last {MOST_EVENTS} of {len(events)} events)" if left_out else "")]
        lines += [f"  {event_line(event, _time)}" for event in events[left_out:]]
    return lines


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
