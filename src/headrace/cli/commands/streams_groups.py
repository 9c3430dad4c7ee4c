"""`headrace streams-groups`: kafka-streams-groups' flags; its columns, widths and messages byte for byte (4.3.1).

Rows come sorted by topic and partition (Kafka's tool prints them in the order of a hash map), members by id. Where
Kafka's tool says "Error" on stdout and ends with 0, the exit code here is 1, and stderr has the way out.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.group_options import (
    STREAMS_GROUP_STATES,
    StreamsGroupOptions,
    action_options,
    connection_options,
    coordinator_address,
    reset_options,
)
from headrace.cli.options import open_admin
from headrace.cli.streams_group_report import member_lines, offset_lines, state_lines
from headrace.cli.terminal import data, echo_err, kafka_table, print_json
from headrace.client.admin_groups import plain_name
from headrace.client.broker_errors import unknown_group_error

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.client.admin_results import StreamsGroupDescription

__all__ = ["command"]


@click.command("streams-groups", context_settings={"ignore_unknown_options": False})
@action_options(
    "streams groups",
    members="the members and their tasks",
    verbose="epochs, targets and positions",
    topic="--input-topic",
)
@click.option(
    "--input-topic",
    "input_topics",
    multiple=True,
    metavar="TOPIC[:0,1,…]",
    help="With --reset-offsets, --delete-offsets: a source topic, or some of its partitions; may be repeated.",
)
@click.option("--all-input-topics", is_flag=True, help="All source topics of the group's topology.")
@reset_options
@click.option(
    "--delete-internal-topic",
    "delete_internal_topics",
    multiple=True,
    metavar="TOPIC",
    help="With --reset-offsets --execute: delete this repartition or changelog topic as well; may be repeated.",
)
@click.option(
    "--delete-all-internal-topics",
    is_flag=True,
    help="With --delete, or --reset-offsets --execute: delete the group's repartition and changelog topics as well.",
)
@connection_options
def command(**given: Any) -> int:
    """List, describe, delete and reset streams groups, with kafka-streams-groups' flags and output.

    \b
      headrace streams-groups --describe --group flight-delays
      headrace streams-groups --describe --group flight-delays --members
      headrace streams-groups --reset-offsets --group flight-delays --all-input-topics --to-earliest --dry-run
    """
    options = StreamsGroupOptions(**given)
    options.check()
    with open_admin(
        options.bootstrap_servers,
        client_id="headrace-streams-groups",
        timeout_ms=options.timeout_ms,
        command_config=options.command_config,
    ) as admin:
        if options.action == "--list":
            return _list(admin, options)
        if options.action == "--describe":
            return _describe_groups(admin, options)
        if options.action == "--delete-offsets":
            return _delete_offsets(admin, options)
        if options.action == "--delete":
            from headrace.cli.streams_group_changes import delete_groups

            return delete_groups(
                admin,
                _chosen(admin, options),
                with_internal_topics=options.delete_all_internal_topics,
                bootstrap_servers=options.bootstrap_servers,
                as_json=options.as_json,
            )
        return _reset(admin, options)


def _list(admin: Admin, options: StreamsGroupOptions) -> int:
    wanted = [part for part in (options.state or "").split(",") if part.strip()]
    known = {plain_name(state) for state in STREAMS_GROUP_STATES}
    if unknown := [state.strip() for state in wanted if plain_name(state) not in known]:
        raise click.UsageError(f"There is no state {', '.join(unknown)}. States: {', '.join(STREAMS_GROUP_STATES)}.")
    listed = admin.list_groups(states=wanted, types=("streams",))
    if options.as_json:
        print_json(listed)
    elif options.state is None:
        for group in listed:
            data(group.group_id)
    else:
        rows = [(group.group_id, group.state) for group in listed]
        for line in kafka_table([("GROUP", 15), ("STATE", 0)], rows, grow=("GROUP",)):
            data(line)
    return 0


def _chosen(admin: Admin, options: StreamsGroupOptions) -> list[str]:
    if options.all_groups:
        return [group.group_id for group in admin.list_groups(types=("streams",))]
    return list(options.groups)


def _describe_groups(admin: Admin, options: StreamsGroupOptions) -> int:
    described = admin.try_describe_streams_groups(_chosen(admin, options))
    for group_id, error in described.errors.items():
        if error.code == "group-missing":
            raise unknown_group_error(group_id, admin.list_groups(), options.bootstrap_servers)
        raise error
    if options.as_json:
        print_json([_document(admin, group) for group in described.done.values()])
        return 0
    for group in described.done.values():
        _describe(admin, group, options)
    return 0


def _describe(admin: Admin, group: StreamsGroupDescription, options: StreamsGroupOptions) -> None:
    """Kafka's tool is silent about an empty group but for its state; the sentence goes to stderr then."""
    if group.state == "Empty":
        sentence = f"\nError: Streams group '{group.group_id}' has no active members."
        data(sentence) if options.view == "state" else echo_err(sentence)
    lines: list[str] = []
    if options.view == "state":
        address, node = coordinator_address(admin, group.group_id)
        lines = state_lines(group, f"{address} ({node})", options.verbose)
    elif group.members and options.view == "members":
        lines = member_lines(group, options.verbose)
    elif group.members:
        lines = offset_lines(admin, group, options.verbose)
    for line in lines:
        data(line)


def _document(admin: Admin, group: StreamsGroupDescription) -> dict[str, object]:
    from dataclasses import asdict

    from headrace.cli.group_view import lag_by_partition

    lags = lag_by_partition(admin, group)
    return {
        **asdict(group),
        "offsets": [
            {
                "topic": topic,
                "partition": partition,
                "committed": lag.committed,
                "leader_epoch": None if lag.leader_epoch < 0 else lag.leader_epoch,
                "end": lag.end,
                "lag": lag.records,
            }
            for (topic, partition), lag in sorted(lags.items())
        ],
    }


def _delete_offsets(admin: Admin, options: StreamsGroupOptions) -> int:
    from headrace.cli.group_offsets import delete_offsets, input_topics

    (group_id,) = options.groups
    partitions = []
    if options.all_input_topics:
        sources = input_topics(admin.describe_streams_groups([group_id])[group_id])
        partitions = [key for key in admin.committed_offsets(group_id) if key[0] in sources]
    return delete_offsets(
        admin,
        group_id,
        () if options.all_input_topics else options.input_topics,
        partitions=partitions,
        bootstrap_servers=options.bootstrap_servers,
        as_json=options.as_json,
    )


def _reset(admin: Admin, options: StreamsGroupOptions) -> int:
    """Kafka's table has columns of 30 that do not grow."""
    from headrace.cli.group_offsets import print_reset
    from headrace.cli.streams_group_changes import reset_offsets

    return print_reset(
        reset_offsets(admin, _chosen(admin, options), options, now_ms=int(time.time() * 1000)),
        executed=options.execute,
        as_csv=options.export,
        as_json=options.as_json,
        with_group=len(options.groups) != 1,
        columns=[("GROUP", 30), ("TOPIC", 30), ("PARTITION", 10), ("NEW-OFFSET", 15)],
    )
