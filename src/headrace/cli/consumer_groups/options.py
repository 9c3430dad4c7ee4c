"""The options of `headrace consumer-groups` as one value, and which go together (ConsumerGroupCommand 4.3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import click

from headrace.cli.group_options import GroupOptions
from headrace.cli.options import exactly_one

__all__ = ["STATES", "TYPES", "ConsumerGroupOptions"]

STATES = ("Empty", "Stable", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Dead")
TYPES = ("classic", "consumer")


_ALONE = {action: f"{action} takes neither --group nor --all-groups." for action in ("--list", "--validate-regex")}


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
        """Raises click.UsageError for what does not go together."""
        self.check_groups(_ALONE)
        self.check_action(
            {
                "--type": (self.type_ is not None, ("--list",)),
                "--topic": (bool(self.topics), ("--delete-offsets", "--reset-offsets")),
                "--all-topics": (self.all_topics, ("--reset-offsets",)),
                "--user-data": (self.user_data, ("--describe",)),
            }
        )
        if self.user_data and not self.members:
            raise click.UsageError("--user-data goes with --describe --members.")
        if self.action == "--delete-offsets" and (self.all_groups or len(self.groups) != 1 or not self.topics):
            raise click.UsageError("--delete-offsets needs one --group and --topic TOPIC[:0,1,…].")
        if self.action == "--reset-offsets":
            self._check_reset()

    def _check_reset(self) -> None:
        if self.dry_run and self.execute:
            raise click.UsageError("Give --dry-run or --execute, not both.")
        exactly_one(self.scenarios())
        if self.topics and self.all_topics:
            raise click.UsageError("Give --topic or --all-topics, not both.")
        if self.from_file is None and not self.topics and not self.all_topics:
            raise click.UsageError("--reset-offsets needs --topic TOPIC or --all-topics (or --from-file).")
