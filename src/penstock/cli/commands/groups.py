"""`penstock groups`: groups of every kind, as kafka-groups lists them."""

from __future__ import annotations

import click

from penstock.cli.options import bootstrap_option, json_option
from penstock.cli.terminal import data, print_json
from penstock.cli.text_table import kafka_table

__all__ = ["command"]


@click.command("groups")
@click.option("--list", "list_", is_flag=True, help="List the groups.")
@click.option("--group-type", "group_type", help="Only groups of this type: streams, consumer, classic, share.")
@click.option("--streams", is_flag=True, help="Only streams groups.")
@bootstrap_option
@json_option
def command(list_: bool, group_type: str | None, streams: bool, bootstrap_servers: str, as_json: bool) -> None:
    """List groups with their type and protocol, with kafka-groups' flags and output."""
    if not list_:
        raise click.UsageError("Give --list.")
    from penstock.client.admin import Admin

    wanted = "streams" if streams else (group_type or "").lower()
    with Admin(bootstrap_servers, client_id="penstock-groups") as admin:
        listed = [group for group in admin.list_groups() if not wanted or group.group_type.lower() == wanted]
    if as_json:
        print_json(listed)
        return
    rows = [(group.group_id, group.group_type.capitalize(), group.protocol_type) for group in listed]
    titles = ("GROUP", "TYPE", "PROTOCOL")
    header, *lines = kafka_table([(title, 20) for title in titles], rows, grow=titles)
    data(header)
    for line in lines:
        data(f"{line} ")  # Kafka's tool ends its rows, but not its header, with a blank
