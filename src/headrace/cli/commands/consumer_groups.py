"""`headrace consumer-groups`: kafka-consumer-groups' flags; its columns, widths and messages byte for byte (4.3.1).

For classic and for consumer groups (KIP-848). Groups come sorted by id, rows by topic and partition, members by id,
where Kafka's tool prints them in the order of a hash map. Where it says "Error" on stdout and ends with 0, the exit
code here is 1, and stderr has the way out.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.group_options import (
    CONSUMER_GROUP_STATES,
    CONSUMER_GROUP_TYPES,
    ConsumerGroupOptions,
    action_options,
    connection_options,
    coordinator_address,
    reset_options,
)
from headrace.cli.options import open_admin
from headrace.cli.terminal import Column, data, echo_err, kafka_table, print_json
from headrace.client.admin_groups import plain_name
from headrace.client.broker_errors import unknown_group_error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.client.admin import Admin
    from headrace.client.admin_groups import ConsumerGroupDescription
    from headrace.client.admin_results import GroupListing

__all__ = ["command"]

# "" is the protocol type of a simple group: positions that were committed without members. Groups of Kafka Connect
# ("connect") are classic groups as well and do not belong to this tool.
PROTOCOLS = ("", "consumer")
REBALANCING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


@click.command("consumer-groups")
@action_options(
    "classic and consumer groups", members="the members", verbose="epochs, assignments and targets", topic="--topic"
)
@click.option("--validate-regex", metavar="REGEX", help="Whether brokers take this regular expression (RE2).")
@click.option(
    "--type",
    "type_",
    is_flag=False,
    flag_value="",
    default=None,
    metavar="[TYPE,…]",
    help="With --list: the type of each group, or only groups of these types.",
)
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,…]",
    help="With --reset-offsets, --delete-offsets: a topic, or some of its partitions; may be repeated.",
)
@click.option(
    "--user-data",
    is_flag=True,
    help="With --describe --members: the user data of each classic member's subscription and assignment as well, as "
    "JSON for known assignors and as hexadecimal digits for others.",
)
@click.option("--all-topics", is_flag=True, help="With --reset-offsets: all partitions with a committed position.")
@reset_options
@connection_options
def command(**given: Any) -> int:
    """List, describe, delete and reset groups of consumers, with kafka-consumer-groups' flags and output.

    \b
      headrace consumer-groups --describe --group delays
      headrace consumer-groups --describe --group delays --members --verbose
      headrace consumer-groups --describe --group delays --members --user-data
      headrace consumer-groups --reset-offsets --group delays --topic flights --to-earliest --dry-run
    """
    options = ConsumerGroupOptions(**given)
    options.check()
    if options.validate_regex is not None:
        return _validate_regex(options.validate_regex)
    with open_admin(
        options.bootstrap_servers,
        client_id="headrace-consumer-groups",
        timeout_ms=options.timeout_ms,
        command_config=options.command_config,
    ) as admin:
        return _act(admin, options)


def _act(admin: Admin, options: ConsumerGroupOptions) -> int:
    if options.action == "--list":
        return _list(admin, options)
    if options.action == "--describe":
        return _describe_groups(admin, options)
    if options.action == "--delete-offsets":
        return _delete_offsets(admin, options)
    if options.action == "--delete":
        from headrace.cli.consumer_group_changes import delete_groups

        return delete_groups(
            admin,
            _chosen(admin, options),
            kinds=CONSUMER_GROUP_TYPES,
            bootstrap_servers=options.bootstrap_servers,
            as_json=options.as_json,
        )
    return _reset(admin, options)


def _validate_regex(expression: str) -> int:
    """Validate a regular expression as the broker does: RE2 without Unicode scripts (docs/reference/limitations.md)."""
    # No broker is asked: the protocol has no request for it. KIP-848 evaluates SubscribedTopicRegex on the broker, in
    # RE2's syntax (Kafka uses RE2/J) and not in the client's language.
    from headrace.coordinator.re2_matcher import BadPattern, LinearPattern

    try:
        LinearPattern(expression)
    except BadPattern as error:
        data(f"The regular expression `{expression}` is invalid: {error}.")
        return 1
    data(f"The regular expression `{expression}` is valid.")
    return 0


def _listed(
    admin: Admin, states: tuple[str, ...] = (), types: tuple[str, ...] = CONSUMER_GROUP_TYPES
) -> tuple[GroupListing, ...]:
    return admin.list_groups(states=states, types=types, protocols=PROTOCOLS)


def _list(admin: Admin, options: ConsumerGroupOptions) -> int:
    states = _named(options.state, CONSUMER_GROUP_STATES, "state")
    types = tuple(name.lower() for name in _named(options.type_, CONSUMER_GROUP_TYPES, "type"))
    listed = _listed(admin, states, types or CONSUMER_GROUP_TYPES)
    if options.as_json:
        print_json(listed)
    elif options.state is None and options.type_ is None:
        for group in listed:
            data(group.group_id)
    else:
        # Ten wider than the longest group id, as ConsumerGroupCommand.printGroupInfo computes it.
        columns: list[Column] = [("GROUP", max([15, *(len(group.group_id) for group in listed)]) + 10)]
        columns += [("TYPE", 20)] if options.type_ is not None else []
        columns += [("STATE", 20)] if options.state is not None else []
        cells = {"GROUP": [g.group_id for g in listed], "TYPE": [g.group_type.capitalize() for g in listed]}
        cells["STATE"] = [group.state for group in listed]
        for line in kafka_table(columns, zip(*(cells[title] for title, _ in columns), strict=True)):
            data(line)
    return 0


def _named(given: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    wanted = tuple(part.strip() for part in (given or "").split(",") if part.strip())
    # An unknown state would match no group, and an empty list reads as "there are none".
    if unknown := [name for name in wanted if plain_name(name) not in {plain_name(each) for each in known}]:
        raise click.UsageError(f"There is no {what} {', '.join(unknown)}. There are: {', '.join(known)}.")
    return wanted


def _chosen(admin: Admin, options: ConsumerGroupOptions) -> list[str]:
    return [group.group_id for group in _listed(admin)] if options.all_groups else sorted(set(options.groups))


def _described(admin: Admin, options: ConsumerGroupOptions) -> Mapping[str, ConsumerGroupDescription]:
    described = admin.try_describe_consumer_groups(_chosen(admin, options))
    # The first error ends the command, as in Kafka's tool: a description of some of the groups would look complete.
    for group_id, error in described.errors.items():
        if error.code == "group-missing":
            raise unknown_group_error(
                group_id, admin.list_groups(), options.bootstrap_servers, kinds=CONSUMER_GROUP_TYPES
            )
        raise error
    return described.done


def _describe_groups(admin: Admin, options: ConsumerGroupOptions) -> int:
    described = _described(admin, options)
    if options.as_json:
        print_json([_document(admin, group) for group in described.values()])
        return 0
    for group in described.values():
        _describe(admin, group, options)
    return 0


def _describe(admin: Admin, group: ConsumerGroupDescription, options: ConsumerGroupOptions) -> None:
    """Kafka's tool says on stderr why there is little to see, and prints an empty table of members all the same."""
    from headrace.cli.consumer_group_report import (
        member_lines,
        offset_lines,
        partition_rows,
        state_lines,
        user_data_lines,
    )

    if group.state == "Empty":
        echo_err(f"\nConsumer group '{group.group_id}' has no active members.")
    elif group.state in REBALANCING:
        echo_err(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.")
    if options.view == "state":
        address, node = coordinator_address(admin, group.group_id)
        lines = state_lines(group, f"{address}  ({node})", options.verbose)
    elif options.view == "members":
        lines = member_lines(group, options.verbose)
        lines += ["", *user_data_lines(group)] if options.user_data else []
    else:
        rows = partition_rows(admin, group)
        lines = offset_lines(group.group_id, rows, options.verbose) if rows else []
    # An empty line before each table: Kafka's tool prints it there and nowhere else.
    if lines:
        data()
    for line in lines:
        data(line)


def _document(admin: Admin, group: ConsumerGroupDescription) -> dict[str, object]:
    """User data of members stands decoded in it, and as hexadecimal digits, which need no knowledge of the assignor."""
    from headrace.cli.consumer_group_report import partition_rows, user_data_of

    document = asdict(group)
    for member, described in zip(document["members"], group.members, strict=True):
        # Undecoded bytes of the same data as `user_data` below, which JSON cannot hold.
        del member["subscription_bytes"], member["assignment_bytes"]
        member["user_data"] = {
            each.role: {
                "hex": None if each.user_data is None else each.user_data.hex(),
                "decoded": each.decoded,
                "unreadable": each.unreadable,
            }
            for each in user_data_of(group, described)
        }
    return {**document, "offsets": [{**asdict(row), "lag": row.lag} for row in partition_rows(admin, group)]}


def _delete_offsets(admin: Admin, options: ConsumerGroupOptions) -> int:
    from headrace.cli.group_offsets import delete_offsets

    return delete_offsets(
        admin,
        options.groups[0],
        options.topics,
        option="--topic",
        bootstrap_servers=options.bootstrap_servers,
        as_json=options.as_json,
    )


def _reset(admin: Admin, options: ConsumerGroupOptions) -> int:
    """Kafka's table grows with its names."""
    from headrace.cli.consumer_group_changes import reset_offsets
    from headrace.cli.group_offsets import print_reset

    if not options.execute and not options.dry_run:
        echo_err("note   nothing is changed: --execute is missing; say --dry-run to plan only")
    return print_reset(
        reset_offsets(admin, _chosen(admin, options), options, now_ms=int(time.time() * 1000)),
        executed=options.execute,
        as_csv=options.export,
        as_json=options.as_json,
        with_group=len(options.groups) != 1,
        columns=[("GROUP", 15), ("TOPIC", 15), ("PARTITION", 10), ("NEW-OFFSET", 0)],
        grow=("GROUP", "TOPIC"),
    )
