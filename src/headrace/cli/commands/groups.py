"""`headrace groups`: groups of all types, listed and filtered as by kafka-groups (4.3.1), and removal of members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.error_fixes import report_error
from headrace.cli.options import bootstrap_option, command_config_option, exactly_one, json_option, open_admin
from headrace.cli.terminal import data, kafka_table, print_json
from headrace.client.broker_errors import unknown_group_error
from headrace.errors import BrokerError, ConfigError
from headrace.suggestions import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from headrace.client.admin import Admin
    from headrace.client.admin_groups import RemovableMember
    from headrace.client.admin_results import GroupListing

__all__ = ["command", "remove_members"]

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
    # The flags are short forms of type and protocol filters, so they exclude each other and the filters themselves.
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
    # Not a filter of ListGroups: "consumer groups" are groups of type consumer, classic groups of protocol type
    # consumer, and simple groups without a protocol type (GroupsCommand).
    listed = [group for group in listed if not consumer or _is_consumer(group)]
    print_json(listed) if as_json else _print(listed)
    return 0


def _remove_members(
    group_id: str, members: tuple[str, ...], bootstrap_servers: str, command_config: Path | None, *, as_json: bool
) -> int:
    from headrace.cli.commands.groups import remove_members

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


def remove_members(admin: Admin, group_id: str, names: Sequence[str], *, bootstrap_servers: str, as_json: bool) -> int:
    """Remove members from a group and print what became of each.

    Args:
        admin: The cluster.
        group_id: A group of any type.
        names: Member ids or instance ids; empty for all members.
        bootstrap_servers: As the user gave it, for the fixes of errors.
        as_json: Whether to print one JSON document.

    Returns:
        The exit code: 1 if a member could not be removed.

    Raises:
        BrokerError: `group-missing`.
        ConfigError: `bad-value` for a name that no member has; then no member is removed.
    """
    try:
        members = admin.removable_members(group_id)
    except BrokerError as error:
        if error.code != "group-missing":
            raise
        raise unknown_group_error(group_id, admin.list_groups(), bootstrap_servers) from error
    chosen = _chosen(group_id, members, names)
    outcomes = admin.try_remove_members(group_id, chosen)
    if as_json:
        print_json(
            {
                "group_id": group_id,
                "removed": list(outcomes.done),
                "refused": {name: error.message for name, error in outcomes.errors.items()},
            }
        )
    else:
        for member_id in outcomes.done:
            data(f"Removed {member_id} from {group_id}.")
        if not chosen:
            data(f"{group_id} has no members.")
    for refused in outcomes.errors.values():
        report_error(refused, as_json=as_json)
    return 1 if outcomes.errors else 0


def _chosen(group_id: str, members: Sequence[RemovableMember], names: Sequence[str]) -> list[RemovableMember]:
    if not names:
        return list(members)
    # Member ids win where one member's instance id equals another's member id. Both names of one member count once: a
    # second LeaveGroup entry would come back as UNKNOWN_MEMBER_ID.
    by_name = {member.instance_id: member for member in members if member.instance_id}
    by_name |= {member.member_id: member for member in members}
    for name in names:
        if name not in by_name:
            near = nearest(name, by_name)
            raise ConfigError(
                "bad-value",
                f"Invalid --member '{name}': the group {group_id} has no such member or instance id.",
                f"Did you mean {near}?"
                if near
                else "List the members: headrace groups --describe, or use --all-members.",
                member=name,
            )
    return list({by_name[name].member_id: by_name[name] for name in names}.values())
