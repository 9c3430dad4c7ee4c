"""The options of `penstock consumer-groups` as one value, and which go together (ConsumerGroupCommand 4.3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from penstock.cli.group_offsets.new_positions import given_scenarios
from penstock.cli.options import exactly_one

__all__ = ["STATES", "TYPES", "ConsumerGroupOptions"]

STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
TYPES = ("classic", "consumer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupOptions:
    """As click hands them over; None where nothing was given. `state` and `type_` are "" for the bare option."""

    list_: bool
    describe: bool
    delete: bool
    delete_offsets: bool
    reset_offsets: bool
    validate_regex: str | None
    groups: tuple[str, ...]
    all_groups: bool
    members: bool
    offsets: bool
    state: str | None
    type_: str | None
    verbose: bool
    topics: tuple[str, ...]
    all_topics: bool
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

    @property
    def action(self) -> str:
        """`--list`, `--describe`, `--delete`, `--delete-offsets`, … Raises click.UsageError."""
        return exactly_one(
            {
                "--list": self.list_,
                "--describe": self.describe,
                "--delete": self.delete,
                "--delete-offsets": self.delete_offsets,
                "--reset-offsets": self.reset_offsets,
                "--validate-regex": self.validate_regex is not None,
            }
        )

    @property
    def view(self) -> str:
        """What `--describe` shows."""
        return "members" if self.members else "state" if self.state is not None else "offsets"

    def check(self) -> None:
        """Raises click.UsageError for what does not go together."""
        action = self.action
        self._check_groups(action)
        views = {"--members": self.members, "--offsets": self.offsets, "--verbose": self.verbose}
        self._only_with(action, views, ("--describe",))
        self._only_with(action, {"--state": self.state is not None}, ("--list", "--describe"))
        self._only_with(action, {"--type": self.type_ is not None}, ("--list",))
        self._only_with(action, {"--topic": bool(self.topics)}, ("--delete-offsets", "--reset-offsets"))
        reset = {"--dry-run": self.dry_run, "--execute": self.execute, "--export": self.export}
        reset["--all-topics"] = self.all_topics
        self._only_with(action, {**reset, **given_scenarios(self)}, ("--reset-offsets",))
        if action == "--describe":
            self._check_describe()
        elif action == "--delete-offsets" and (self.all_groups or len(self.groups) != 1 or not self.topics):
            raise click.UsageError("--delete-offsets needs one --group and --topic TOPIC[:0,1,…].")
        elif action == "--reset-offsets":
            self._check_reset()

    def _only_with(self, action: str, given: dict[str, bool], actions: tuple[str, ...]) -> None:
        for name, present in given.items():
            if present and action not in actions:
                raise click.UsageError(f"{name} goes with {' or '.join(actions)}, not with {action}.")

    def _check_groups(self, action: str) -> None:
        if self.groups and self.all_groups:
            raise click.UsageError("Give --group or --all-groups, not both.")
        alone = action in ("--list", "--validate-regex")
        if alone and (self.groups or self.all_groups):
            raise click.UsageError(f"{action} takes neither --group nor --all-groups.")
        if not alone and not self.groups and not self.all_groups:
            raise click.UsageError(f"{action} needs --group ID or --all-groups.")

    def _check_describe(self) -> None:
        if sum((self.members, self.offsets, self.state is not None)) > 1:
            raise click.UsageError("Give at most one of --members, --offsets, --state.")
        if self.state:
            raise click.UsageError("With --describe, --state takes no value.")

    def _check_reset(self) -> None:
        if self.dry_run and self.execute:
            raise click.UsageError("Give --dry-run or --execute, not both.")
        exactly_one(given_scenarios(self))
        if self.topics and self.all_topics:
            raise click.UsageError("Give --topic or --all-topics, not both.")
        if self.from_file is None and not self.topics and not self.all_topics:
            raise click.UsageError("--reset-offsets needs --topic TOPIC or --all-topics (or --from-file).")
