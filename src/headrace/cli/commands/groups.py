"""`headrace groups`: groups of every kind, as kafka-groups lists and filters them (4.3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, command_config_option, exactly_one, json_option, open_admin
from headrace.cli.terminal import data, print_json
from headrace.cli.text_table import kafka_table

if TYPE_CHECKING:
    from headrace.client.admin_results import GroupListing

__all__ = ["command"]

TYPES = ("classic", "consumer", "share", "streams")


@click.command("groups")
@click.option("--list", "list_", is_flag=True, help="List the groups.")
@click.option("--remove-members", is_flag=True, help="Make members leave their group; not in Kafka's tool.")
@click.option("--group", "group_id", metavar="ID", help="With --remove-members: the group, of any type.")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="ID",
    help="With --remove-members: a member id or instance id; may be repeated.",
)
@click.option("--all-members", is_flag=True, help="With --remove-members: every member of the group.")
@click.option(
    "--group-type",
    "group_type",
    type=click.Choice(TYPES, case_sensitive=False),
    help="Only groups of this type.",
)
@click.option("--protocol", help="Only groups of this protocol type, such as consumer, streams, connect.")
@click.option(
    "--consumer", is_flag=True, help="Only consumer groups of all kinds: classic ones and simple ones as well."
)
@click.option("--share", is_flag=True, help="Only share groups.")
@click.option("--streams", is_flag=True, help="Only streams groups.")
@click.option(
    "--state", "states", metavar="STATE,…", help="Only groups in these states, in any spelling; not in Kafka's tool."
)
@command_config_option
@bootstrap_option
@json_option
def command(
    list_: bool,
    remove_members: bool,
    group_id: str | None,
    members: tuple[str, ...],
    all_members: bool,
    group_type: str | None,
    protocol: str | None,
    consumer: bool,
    share: bool,
    streams: bool,
    states: str | None,
    command_config: Path | None,
    bootstrap_servers: str,
    as_json: bool,
) -> int:
    """List groups with their type and protocol, with kafka-groups' flags and output; or remove members.

    A member that is removed leaves as if it had closed. One whose process is alive joins again, so stop it first.

    \b
      headrace groups --list --streams
      headrace groups --remove-members --group flight-delays --member flights-3
    """
    action = exactly_one({"--list": list_, "--remove-members": remove_members})
    if action == "--remove-members":
        if group_id is None or bool(members) == all_members:
            raise click.UsageError("--remove-members needs --group, and either --member or --all-members.")
        return _remove_members(group_id, members, bootstrap_servers, command_config, as_json=as_json)
    if group_id is not None or members or all_members:
        raise click.UsageError("--group, --member and --all-members go with --remove-members.")
    kinds = {"--consumer": consumer, "--share": share, "--streams": streams}
    given = [name for name, value in kinds.items() if value]
    if len(given) > 1 or (given and (group_type or protocol is not None)):
        raise click.UsageError("Give only one of --consumer, --share, --streams, or --group-type with --protocol.")
    with open_admin(bootstrap_servers, client_id="headrace-groups", command_config=command_config) as admin:
        listed: Iterable[GroupListing] = admin.list_groups(
            states=[state for state in (states or "").split(",") if state.strip()],
            types=["streams"] if streams else ["share"] if share else [group_type] if group_type else [],
            protocols=() if protocol is None else (protocol,),
        )
    listed = [group for group in listed if not consumer or _is_consumer(group)]
    print_json(listed) if as_json else _print(listed)
    return 0


def _remove_members(
    group_id: str, members: tuple[str, ...], bootstrap_servers: str, command_config: Path | None, *, as_json: bool
) -> int:
    from headrace.cli.member_removal import remove_members

    with open_admin(bootstrap_servers, client_id="headrace-groups", command_config=command_config) as admin:
        return remove_members(admin, group_id, members, bootstrap_servers=bootstrap_servers, as_json=as_json)


def _is_consumer(group: GroupListing) -> bool:
    return group.protocol_type in ("consumer", "") or group.group_type.lower() == "consumer"


def _print(listed: Iterable[GroupListing]) -> None:
    """All three columns are as wide as the widest value of all."""
    rows = [(group.group_id, group.group_type.capitalize(), group.protocol_type) for group in listed]
    width = max([20, *(len(value) for row in rows for value in row)])
    header, *lines = kafka_table([(title, width) for title in ("GROUP", "TYPE", "PROTOCOL")], rows)
    data(header)
    for line in lines:
        data(f"{line} ")  # Kafka's tool ends its rows, but not its header, with a blank
