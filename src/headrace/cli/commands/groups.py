"""`headrace groups`: groups of every kind, as kafka-groups lists and filters them (4.3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, command_config_option, json_option, open_admin
from headrace.cli.terminal import data, print_json
from headrace.cli.text_table import kafka_table

if TYPE_CHECKING:
    from headrace.client.admin_results import GroupListing

__all__ = ["command"]

TYPES = ("classic", "consumer", "share", "streams")


@click.command("groups")
@click.option("--list", "list_", is_flag=True, help="List the groups.")
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
    group_type: str | None,
    protocol: str | None,
    consumer: bool,
    share: bool,
    streams: bool,
    states: str | None,
    command_config: Path | None,
    bootstrap_servers: str,
    as_json: bool,
) -> None:
    """List groups with their type and protocol, with kafka-groups' flags and output.

    \b
      headrace groups --list --streams
    """
    if not list_:
        raise click.UsageError("Give --list.")
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
    if consumer:
        listed = [group for group in listed if _is_consumer(group)]
    if as_json:
        print_json(list(listed))
        return
    _print(listed)


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
