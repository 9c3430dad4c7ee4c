"""Options of `consumer-groups` and `streams-groups` as values, with the combinations that Kafka's tools allow.

Sources: ConsumerGroupCommandOptions and StreamsGroupCommandOptions of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.cli.options import bootstrap_option, command_config_option, exactly_one, json_option, timeout_option

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = [
    "CONSUMER_GROUP_STATES",
    "CONSUMER_GROUP_TYPES",
    "STREAMS_GROUP_STATES",
    "ConsumerGroupOptions",
    "GroupOptions",
    "StreamsGroupOptions",
    "action_options",
    "connection_options",
    "coordinator_address",
    "reset_options",
]

Function = TypeVar("Function", bound=Callable[..., Any])

_RESET = (
    click.option("--to-offset", type=int, metavar="N", help="Reset to this offset."),
    click.option("--to-earliest", is_flag=True, help="Reset to the beginning of the log."),
    click.option("--to-latest", is_flag=True, help="Reset to the end of the log."),
    click.option("--to-current", is_flag=True, help="Keep the committed positions (to --export them)."),
    click.option(
        "--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="Reset to the first record at or after it (UTC)."
    ),
    click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to this long before now."),
    click.option("--shift-by", type=int, metavar="N", help="Move each position by N, forwards or backwards."),
    click.option(
        "--from-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Reset to the positions of a CSV file, as --export writes it.",
    ),
    click.option("--dry-run", is_flag=True, help="With --reset-offsets: only show the new positions."),
    click.option("--execute", is_flag=True, help="With --reset-offsets: do it."),
    click.option("--export", is_flag=True, help="With --reset-offsets: print the new positions as CSV."),
)
_CONNECTION = (timeout_option, command_config_option, bootstrap_option, json_option)


def _taken(function: Function, options: tuple[Callable[[Function], Function], ...]) -> Function:
    # Decorators apply from the bottom up, and `--help` lists options in the order of the source: the tuple is read
    # backwards so that the help follows it.
    for option in reversed(options):
        function = option(function)
    return function


def action_options(kinds: str, *, members: str, verbose: str, topic: str) -> Callable[[Function], Function]:
    """Add the options that select the action and the groups.

    `kinds`, `members`, `verbose` and `topic` are the parts of their help texts that differ between the tools.
    """
    listed = "With --list: the state of each group, or only groups in these states. "
    options: tuple[Callable[[Function], Function], ...] = (
        click.option("--list", "list_", is_flag=True, help=f"List the {kinds}."),
        click.option("--describe", is_flag=True, help="Describe groups: offsets and lag, or --members, or --state."),
        click.option("--delete", is_flag=True, help="Delete groups without members, with their offsets."),
        click.option("--delete-offsets", is_flag=True, help=f"Forget positions of one group, of the {topic} given."),
        click.option(
            "--reset-offsets",
            is_flag=True,
            help="Set positions of groups without members; with --dry-run or --execute.",
        ),
        click.option("--group", "groups", multiple=True, metavar="ID", help="The group; may be repeated."),
        click.option("--all-groups", is_flag=True, help=f"All {kinds}."),
        click.option("--members", is_flag=True, help=f"With --describe: {members}."),
        click.option(
            "--offsets", is_flag=True, help="With --describe: offsets and lag of each partition (the default)."
        ),
        click.option(
            # An option with an optional value, as in Kafka's tools: `is_flag=False` with `flag_value=""` lets a bare
            # `--state` mean "show states" and `--state Stable` filter by one.
            "--state",
            is_flag=False,
            flag_value="",
            default=None,
            metavar="[STATE,…]",
            help=f"{listed}With --describe: the group's state.",
        ),
        click.option("--verbose", is_flag=True, help=f"With --describe: {verbose} as well."),
    )

    def add(function: Function) -> Function:
        return _taken(function, options)

    return add


def reset_options(function: Function) -> Function:
    """Add the options of a reset."""
    return _taken(function, _RESET)


def connection_options(function: Function) -> Function:
    """Add the options of connection and output."""
    return _taken(function, _CONNECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """Values of the options of group commands; None where an option is missing. `state` is "" for a bare `--state`."""

    list_: bool
    describe: bool
    delete: bool
    delete_offsets: bool
    reset_offsets: bool
    groups: tuple[str, ...]
    all_groups: bool
    members: bool
    offsets: bool
    state: str | None
    verbose: bool
    to_offset: int | None
    to_earliest: bool
    to_latest: bool
    to_current: bool
    to_datetime: str | None
    by_duration: str | None
    shift_by: int | None
    from_file: Path | None
    dry_run: bool
    execute: bool
    export: bool
    bootstrap_servers: str
    timeout_ms: int
    command_config: Path | None
    as_json: bool

    def actions(self) -> dict[str, bool]:
        """Return the actions that were given; exactly one is allowed."""
        return {
            "--list": self.list_,
            "--describe": self.describe,
            "--delete": self.delete,
            "--delete-offsets": self.delete_offsets,
            "--reset-offsets": self.reset_offsets,
        }

    @property
    def action(self) -> str:
        """`--list`, `--describe`, `--delete`, … Raises click.UsageError."""
        return exactly_one(self.actions())

    def scenarios(self) -> dict[str, bool]:
        """Return each scenario of a reset, and whether it was given."""
        return {
            "--to-offset": self.to_offset is not None,
            "--to-earliest": self.to_earliest,
            "--to-latest": self.to_latest,
            "--to-current": self.to_current,
            "--to-datetime": self.to_datetime is not None,
            "--by-duration": self.by_duration is not None,
            "--shift-by": self.shift_by is not None,
            "--from-file": self.from_file is not None,
        }

    @property
    def scenario(self) -> str:
        """Return the scenario that was given. Raises click.UsageError."""
        return exactly_one(self.scenarios())

    @property
    def view(self) -> str:
        """Return the view that `--describe` shows."""
        return "members" if self.members else "state" if self.state is not None else "offsets"

    def check_action(self, own: Mapping[str, tuple[bool, tuple[str, ...]]]) -> None:
        """Check that all given options belong to the action.

        Args:
            own: options of one tool: whether they were given, and the actions that they belong to.

        Raises:
            click.UsageError: an option does not belong to the action.
        """
        views = {"--members": self.members, "--offsets": self.offsets, "--verbose": self.verbose}
        reset = {"--dry-run": self.dry_run, "--execute": self.execute, "--export": self.export, **self.scenarios()}
        self._only_with(views, ("--describe",))
        self._only_with({"--state": self.state is not None}, ("--list", "--describe"))
        self._only_with(reset, ("--reset-offsets",))
        for name, (given, actions) in own.items():
            self._only_with({name: given}, actions)
        if self.action == "--describe":
            self._check_describe()

    def _only_with(self, given: Mapping[str, bool], actions: tuple[str, ...]) -> None:
        for name, present in given.items():
            if present and self.action not in actions:
                raise click.UsageError(f"{name} goes with {' or '.join(actions)}, not with {self.action}.")

    def check_groups(self, alone: Mapping[str, str]) -> None:
        """Check that groups are named where the action needs them.

        Args:
            alone: actions without groups, with the message for a group that was named.

        Raises:
            click.UsageError: a group is missing, or must not be named.
        """
        if self.groups and self.all_groups:
            raise click.UsageError("Give --group or --all-groups, not both.")
        if self.action in alone and (self.groups or self.all_groups):
            raise click.UsageError(alone[self.action])
        if self.action not in alone and not self.groups and not self.all_groups:
            raise click.UsageError(f"{self.action} needs --group ID or --all-groups.")

    def _check_describe(self) -> None:
        if sum((self.members, self.offsets, self.state is not None)) > 1:
            raise click.UsageError("Give at most one of --members, --offsets, --state.")
        if self.state:
            raise click.UsageError("With --describe, --state takes no value.")


def coordinator_address(admin: Admin, group_id: str) -> tuple[str, int]:
    """`host:port` of a group's coordinator, and its node id."""
    # FindCoordinator has just made the broker known, but cached metadata may be older than the broker's last restart
    # with another address; descriptions print the current one.
    node = admin.client.coordinator_for(group_id)
    address = admin.client.metadata((), refresh=True).brokers[node]
    return f"{address.host}:{address.port}", node


# States of both group types: PreparingRebalance and CompletingRebalance are classic, Assigning and Reconciling belong
# to KIP-848, the others to both.
CONSUMER_GROUP_STATES = (
    "Empty",
    "Stable",
    "PreparingRebalance",
    "CompletingRebalance",
    "Assigning",
    "Reconciling",
    "Dead",
)
CONSUMER_GROUP_TYPES = ("classic", "consumer")


_WITHOUT_GROUP = {
    action: f"{action} takes neither --group nor --all-groups." for action in ("--list", "--validate-regex")
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupOptions(GroupOptions):
    """`type_` is "" for the bare option."""

    validate_regex: str | None
    type_: str | None
    topics: tuple[str, ...]
    all_topics: bool
    user_data: bool

    def actions(self) -> dict[str, bool]:
        return {**GroupOptions.actions(self), "--validate-regex": self.validate_regex is not None}

    def check(self) -> None:
        """Check the combination of options. Raises click.UsageError for what does not go together."""
        self.check_groups(_WITHOUT_GROUP)
        self.check_action(
            {
                "--type": (self.type_ is not None, ("--list",)),
                "--topic": (bool(self.topics), ("--delete-offsets", "--reset-offsets")),
                "--all-topics": (self.all_topics, ("--reset-offsets",)),
                "--user-data": (self.user_data, ("--describe",)),
            }
        )
        # 1. Combinations of options that `check_action` cannot express, because they depend on more than the action.
        if self.user_data and not self.members:
            raise click.UsageError("--user-data goes with --describe --members.")
        # 2. Kafka deletes offsets of one group at a time: OffsetDelete (KIP-496) carries a single group id.
        if self.action == "--delete-offsets" and (self.all_groups or len(self.groups) != 1 or not self.topics):
            raise click.UsageError("--delete-offsets needs one --group and --topic TOPIC[:0,1,…].")
        if self.action == "--reset-offsets":
            self._check_reset()

    def _check_reset(self) -> None:
        # Without either of them kafka-consumer-groups plans and warns; so does `_reset` in commands/consumer_groups.py.
        if self.dry_run and self.execute:
            raise click.UsageError("Give --dry-run or --execute, not both.")
        exactly_one(self.scenarios())
        if self.topics and self.all_topics:
            raise click.UsageError("Give --topic or --all-topics, not both.")
        if self.from_file is None and not self.topics and not self.all_topics:
            raise click.UsageError("--reset-offsets needs --topic TOPIC or --all-topics (or --from-file).")


STREAMS_GROUP_STATES = ("Empty", "NotReady", "Stable", "Assigning", "Reconciling", "Dead")


_STREAMS_WITHOUT_GROUP = {"--list": "--list lists all streams groups; it takes neither --group nor --all-groups."}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupOptions(GroupOptions):
    """Topics are the source topics of the group's topology, and its internal ones."""

    input_topics: tuple[str, ...]
    all_input_topics: bool
    delete_internal_topics: tuple[str, ...]
    delete_all_internal_topics: bool

    def check(self) -> None:
        """Check the combination of options. Raises click.UsageError for what does not go together."""
        self.check_groups(_STREAMS_WITHOUT_GROUP)
        sources = bool(self.input_topics) or self.all_input_topics
        self.check_action(
            {
                "--input-topic or --all-input-topics": (sources, ("--delete-offsets", "--reset-offsets")),
                "--delete-all-internal-topics": (self.delete_all_internal_topics, ("--delete", "--reset-offsets")),
                "--delete-internal-topic": (bool(self.delete_internal_topics), ("--reset-offsets",)),
            }
        )
        if self.action == "--delete-offsets":
            self._check_delete_offsets()
        elif self.action == "--reset-offsets":
            self._check_reset()

    def _check_delete_offsets(self) -> None:
        if self.all_groups or len(self.groups) != 1:
            raise click.UsageError("--delete-offsets works on one --group at a time.")
        if not self.input_topics and not self.all_input_topics:
            raise click.UsageError("--delete-offsets needs --input-topic TOPIC or --all-input-topics.")

    def _check_reset(self) -> None:
        # Exactly one of both. A reset of a streams group is more than its positions: stores built from the old ones
        # stay unless internal topics are deleted, so nothing is done by default.
        if self.dry_run == self.execute:
            raise click.UsageError("--reset-offsets needs either --dry-run or --execute.")
        if self.scenario != "--from-file" and not self.input_topics and not self.all_input_topics:
            raise click.UsageError("--reset-offsets needs --input-topic TOPIC or --all-input-topics (or --from-file).")
        # Deleting a topic has no dry run in the protocol; a plan that shows positions only would hide the larger part.
        if (self.delete_all_internal_topics or self.delete_internal_topics) and not self.execute:
            raise click.UsageError("Internal topics are deleted with --execute only.")
