"""The options of `penstock streams-groups` as one value, and which of them go together (StreamsGroupCommand 4.3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from penstock.cli.group_offsets.new_positions import given_scenarios
from penstock.cli.options import exactly_one

__all__ = ["STATES", "StreamsGroupOptions"]

STATES = ("Empty", "NotReady", "Stable", "Assigning", "Reconciling", "Dead")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupOptions:
    """As click hands them over; None where nothing was given. `state` is "" for a bare `--state`."""

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
    input_topics: tuple[str, ...]
    all_input_topics: bool
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
    delete_internal_topics: tuple[str, ...]
    delete_all_internal_topics: bool
    bootstrap_servers: str
    timeout_ms: int
    command_config: Path | None
    as_json: bool

    @property
    def action(self) -> str:
        """`--list`, `--describe`, `--delete`, `--delete-offsets` or `--reset-offsets`. Raises click.UsageError."""
        return exactly_one(
            {
                "--list": self.list_,
                "--describe": self.describe,
                "--delete": self.delete,
                "--delete-offsets": self.delete_offsets,
                "--reset-offsets": self.reset_offsets,
            }
        )

    @property
    def scenario(self) -> str:
        """The one scenario that was given; wrong usage otherwise."""
        return exactly_one(given_scenarios(self))

    @property
    def view(self) -> str:
        """What `--describe` shows."""
        return "members" if self.members else "state" if self.state is not None else "offsets"

    def check(self) -> None:
        """Raises click.UsageError for what does not go together."""
        action = self.action
        self._check_groups(action)
        self._only_with(action, {"--members": self.members, "--offsets": self.offsets}, ("--describe",))
        self._only_with(action, {"--verbose": self.verbose}, ("--describe",))
        self._only_with(action, {"--state": self.state is not None}, ("--list", "--describe"))
        topics = bool(self.input_topics) or self.all_input_topics
        self._only_with(
            action, {"--input-topic or --all-input-topics": topics}, ("--delete-offsets", "--reset-offsets")
        )
        reset = {"--dry-run": self.dry_run, "--execute": self.execute, "--export": self.export}
        self._only_with(action, reset, ("--reset-offsets",))
        self._only_with(action, given_scenarios(self), ("--reset-offsets",))
        everything = {"--delete-all-internal-topics": self.delete_all_internal_topics}
        self._only_with(action, everything, ("--delete", "--reset-offsets"))
        self._only_with(action, {"--delete-internal-topic": bool(self.delete_internal_topics)}, ("--reset-offsets",))
        if action == "--describe":
            self._check_describe()
        elif action == "--delete-offsets":
            self._check_delete_offsets()
        elif action == "--reset-offsets":
            self._check_reset()

    def _only_with(self, action: str, given: dict[str, bool], actions: tuple[str, ...]) -> None:
        for name, present in given.items():
            if present and action not in actions:
                raise click.UsageError(f"{name} goes with {' or '.join(actions)}, not with {action}.")

    def _check_groups(self, action: str) -> None:
        if self.groups and self.all_groups:
            raise click.UsageError("Give --group or --all-groups, not both.")
        if action == "--list" and (self.groups or self.all_groups):
            raise click.UsageError("--list lists all streams groups; it takes neither --group nor --all-groups.")
        if action != "--list" and not self.groups and not self.all_groups:
            raise click.UsageError(f"{action} needs --group ID or --all-groups.")

    def _check_describe(self) -> None:
        if sum((self.members, self.offsets, self.state is not None)) > 1:
            raise click.UsageError("Give at most one of --members, --offsets, --state.")
        if self.state:
            raise click.UsageError("With --describe, --state takes no value.")

    def _check_delete_offsets(self) -> None:
        if self.all_groups or len(self.groups) != 1:
            raise click.UsageError("--delete-offsets works on one --group at a time.")
        if not self.input_topics and not self.all_input_topics:
            raise click.UsageError("--delete-offsets needs --input-topic TOPIC or --all-input-topics.")

    def _check_reset(self) -> None:
        if self.dry_run == self.execute:
            raise click.UsageError("--reset-offsets needs either --dry-run or --execute.")
        if self.scenario != "--from-file" and not self.input_topics and not self.all_input_topics:
            raise click.UsageError("--reset-offsets needs --input-topic TOPIC or --all-input-topics (or --from-file).")
        if (self.delete_all_internal_topics or self.delete_internal_topics) and not self.execute:
            raise click.UsageError("Internal topics are deleted with --execute only.")
