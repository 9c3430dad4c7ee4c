"""`headrace top [GROUP]`: the live view of a group whose members run streams; any broker will do."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.group_table import group_line, member_rows, plain_rows, table
from headrace.cli.group_view import GroupPoller, GroupView
from headrace.cli.options import bootstrap_option, command_config_option, json_option, open_admin
from headrace.cli.terminal import console, data, is_terminal, print_json
from headrace.client.broker_errors import unknown_group_error
from headrace.client.classic_streams_groups import may_run_streams
from headrace.errors import BrokerError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from headrace.client.admin import Admin
    from headrace.client.admin_results import GroupListing

__all__ = ["command"]


@click.command("top")
@click.argument("group", required=False)
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks.",
)
@bootstrap_option
@command_config_option
@json_option
def command(
    group: str | None,
    once: bool,
    interval: float,
    bootstrap_servers: str,
    command_config: Path | None,
    as_json: bool,
) -> None:
    """Show the members of a streams group with their tasks, rates and lags.

    Without GROUP: the only streams group there is. A group that is NotReady is explained: why, and what to do.
    Ctrl-C ends it. With --json each look is one document (with --once a single one).

    \b
      headrace top flight-delays
    """
    with open_admin(bootstrap_servers, client_id="headrace-top", command_config=command_config) as admin:
        watch = GroupPoller(admin, _chosen(admin, group, bootstrap_servers))
        if as_json:
            _print_documents(watch, once, interval)
        elif once or not is_terminal():
            _print_texts(watch, once, interval)
        else:
            _draw(watch, interval)


def _chosen(admin: Admin, group: str | None, bootstrap_servers: str) -> str:
    # All types are listed, so that the error for a group of another type can say so.
    found = admin.list_groups()
    listed = [one.group_id for one in found if one.group_type.lower() == "streams"]
    if group is not None:
        if group not in listed and group not in admin.try_describe_streams_groups([group]).done:
            raise unknown_group_error(group, found, bootstrap_servers)
        return group
    # ListGroups does not tell classic groups that run streams from those of consumers, so each is described.
    listed = listed or list(admin.try_describe_streams_groups(map(_group_id, filter(may_run_streams, found))).done)
    if len(listed) == 1:
        return listed[0]
    if not listed:
        raise BrokerError(
            "group-missing",
            f"there is no streams group on {bootstrap_servers}",
            "start an application:  headrace run APP",
        )
    raise click.UsageError(f"There are {len(listed)} streams groups; name one: {', '.join(listed)}.")


def _group_id(listed: GroupListing) -> str:
    return listed.group_id


def _poll(watch: GroupPoller, once: bool, interval: float) -> GroupView:
    view = watch.look(now_ms=_now_ms())
    if once and view.members:  # a rate needs two looks
        # A second at most: `--once` is used in scripts, and the offsets of a running group move several times a second.
        time.sleep(min(interval, 1.0))
        view = watch.look(now_ms=_now_ms())
    return view


def _print_documents(watch: GroupPoller, once: bool, interval: float) -> None:
    while True:
        print_json(asdict(_poll(watch, once, interval)))
        if once:
            return
        time.sleep(interval)


def _print_texts(watch: GroupPoller, once: bool, interval: float) -> None:
    while True:
        for line in view_lines(_poll(watch, once, interval)):
            data(line)
        if once:
            return
        data()
        time.sleep(interval)


def view_lines(view: GroupView) -> list[str]:
    """The view as text: the group, why it waits, its members."""
    lines = [group_line(view)]
    for obstacle in view.obstacles:
        lines += [f"  why    {obstacle.why}", f"  do     {obstacle.do}"]
    return lines + plain_rows(member_rows(view))


def _draw(watch: GroupPoller, interval: float) -> None:
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(_render(watch.look(now_ms=_now_ms())), refresh=True)
            time.sleep(interval)


def _render(view: GroupView) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    why = [
        Text(f"  {label:<6} {text}", style="yellow")
        for o in view.obstacles
        for label, text in (("why", o.why), ("do", o.do))
    ]
    return Group(
        Text(group_line(view), style="bold"),
        *why,
        table(member_rows(view)),
        Text("Ctrl-C ends this view; the group goes on.", style="dim"),
    )


def _now_ms() -> int:
    # Monotonic, since only differences count: a step of the wall clock would show as a negative or enormous rate.
    return int(time.monotonic() * 1000)
