"""`penstock streams-groups`: kafka-streams-groups' flags; its columns, widths and messages byte for byte (4.3.1).

Rows come sorted by topic and partition (Kafka's tool prints them in the order of a hash map), members by id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli.group_report import member_lines, offset_lines, state_lines
from penstock.cli.options import bootstrap_option, exactly_one, json_option
from penstock.cli.terminal import data, print_json, talk
from penstock.cli.text_table import kafka_table
from penstock.client.near_names import group_missing
from penstock.errors import BrokerError

if TYPE_CHECKING:
    from penstock.client.admin import Admin
    from penstock.client.admin_results import GroupListing, StreamsGroupDescription

__all__ = ["command"]

STATES = ("Empty", "NotReady", "Stable", "Assigning", "Reconciling", "Dead")


@click.command("streams-groups", context_settings={"ignore_unknown_options": False})
@click.option("--list", "list_", is_flag=True, help="List the streams groups.")
@click.option("--describe", is_flag=True, help="Describe groups: offsets and lag, or --members, or --state.")
@click.option("--delete", is_flag=True, help="Delete groups without members, with their offsets.")
@click.option("--group", "groups", multiple=True, metavar="ID", help="The group; may be repeated.")
@click.option("--all-groups", is_flag=True, help="All streams groups.")
@click.option("--members", is_flag=True, help="With --describe: the members and their tasks.")
@click.option("--offsets", is_flag=True, help="With --describe: offsets and lag of each partition (the default).")
@click.option(
    "--state",
    "state",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[STATE,…]",
    help="With --list: the state of each group, or only groups in these states. With --describe: the group's state.",
)
@click.option("--verbose", is_flag=True, help="With --describe: epochs, targets and positions as well.")
@bootstrap_option
@json_option
def command(
    list_: bool,
    describe: bool,
    delete: bool,
    groups: tuple[str, ...],
    all_groups: bool,
    members: bool,
    offsets: bool,
    state: str | None,
    verbose: bool,
    bootstrap_servers: str,
    as_json: bool,
) -> int:
    """List, describe and delete streams groups, with kafka-streams-groups' flags and output.

    \b
      penstock streams-groups --describe --group flight-delays
      penstock streams-groups --describe --group flight-delays --members
    """
    action = exactly_one({"--list": list_, "--describe": describe, "--delete": delete})
    if action != "--list" and not groups and not all_groups:
        raise click.UsageError(f"{action} needs --group ID or --all-groups.")
    if sum((members, offsets, state is not None)) > 1:
        raise click.UsageError("Give at most one of --members, --offsets, --state.")
    from penstock.client.admin import Admin

    with Admin(bootstrap_servers, client_id="penstock-streams-groups") as admin:
        if action == "--list":
            return _list(_listed(admin, state), state, as_json)
        listed = {group.group_id for group in admin.list_groups(types=("streams",))}
        chosen = sorted(listed) if all_groups else list(groups)
        if action == "--delete":
            return _delete(admin, chosen)
        if missing := [group for group in chosen if group not in listed]:
            raise group_missing(missing[0], listed, bootstrap_servers)
        view = "members" if members else "state" if state is not None else "offsets"
        described = admin.describe_streams_groups(chosen)
        if as_json:
            print_json([_document(admin, group) for group in described.values()])
            return 0
        for group in described.values():
            _describe(admin, group, view, verbose)
    return 0


def _listed(admin: Admin, state: str | None) -> list[GroupListing]:
    wanted = {part.strip().lower() for part in (state or "").split(",") if part.strip()}
    unknown = wanted - {known.lower() for known in STATES}
    if unknown:
        raise click.UsageError(f"There is no state {', '.join(sorted(unknown))}. States: {', '.join(STATES)}.")
    return [g for g in admin.list_groups(types=("streams",)) if not wanted or g.state.lower() in wanted]


def _list(listed: list[GroupListing], state: str | None, as_json: bool) -> int:
    if as_json:
        print_json(listed)
    elif state is None:
        for group in listed:
            data(group.group_id)
    else:
        rows = [(group.group_id, group.state) for group in listed]
        for line in kafka_table([("GROUP", 15), ("STATE", 0)], rows, grow=("GROUP",)):
            data(line)
    return 0


def _describe(admin: Admin, group: StreamsGroupDescription, view: str, verbose: bool) -> None:
    if group.state in ("Empty", "Dead"):
        what = "has no active members" if group.state == "Empty" else "group state is DEAD"
        data(f"\nError: Streams group '{group.group_id}' {what}.")
        if group.state == "Dead":
            return
    if view == "members":
        lines = member_lines(group, verbose) if group.members else []
    elif view == "state":
        lines = state_lines(group, _coordinator(admin, group.group_id), verbose)
    else:
        lines = offset_lines(admin, group, verbose)
    for line in lines:
        data(line)


def _coordinator(admin: Admin, group_id: str) -> str:
    node = admin.client.coordinator_for(group_id)
    address = admin.client.metadata((), refresh=True).brokers[node]
    return f"{address.host}:{address.port} ({node})"


def _delete(admin: Admin, groups: list[str]) -> int:
    failed = 0
    deleted = []
    for group_id in groups:
        try:
            admin.delete_groups([group_id])
            deleted.append(group_id)
        except BrokerError as error:
            failed += 1
            talk(error.render())
    if deleted:
        names = "', '".join(deleted)
        data(f"Deletion of requested streams groups ('{names}') was successful.")
    return 1 if failed else 0


def _document(admin: Admin, group: StreamsGroupDescription) -> dict[str, object]:
    from dataclasses import asdict

    from penstock.cli.group_view import lag_by_partition

    lags = lag_by_partition(admin, group)
    return {
        **asdict(group),
        "offsets": [
            {"topic": topic, "partition": partition, "committed": lag.committed, "end": lag.end, "lag": lag.records}
            for (topic, partition), lag in sorted(lags.items())
        ],
    }
