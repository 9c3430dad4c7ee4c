"""The options of `headrace streams-groups` as one value, and which of them go together (StreamsGroupCommand 4.3.1)."""

from __future__ import annotations

from dataclasses import dataclass

import click

from headrace.cli.group_options import GroupOptions

__all__ = ["STATES", "StreamsGroupOptions"]

STATES = ("Empty", "NotReady", "Stable", "Assigning", "Reconciling", "Dead")


_ALONE = {"--list": "--list lists all streams groups; it takes neither --group nor --all-groups."}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsGroupOptions(GroupOptions):
    """Topics are the source topics of the group's topology, and its internal ones."""

    input_topics: tuple[str, ...]
    all_input_topics: bool
    delete_internal_topics: tuple[str, ...]
    delete_all_internal_topics: bool

    def check(self) -> None:
        """Raises click.UsageError for what does not go together."""
        self.check_groups(_ALONE)
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
        if self.dry_run == self.execute:
            raise click.UsageError("--reset-offsets needs either --dry-run or --execute.")
        if self.scenario != "--from-file" and not self.input_topics and not self.all_input_topics:
            raise click.UsageError("--reset-offsets needs --input-topic TOPIC or --all-input-topics (or --from-file).")
        if (self.delete_all_internal_topics or self.delete_internal_topics) and not self.execute:
            raise click.UsageError("Internal topics are deleted with --execute only.")
