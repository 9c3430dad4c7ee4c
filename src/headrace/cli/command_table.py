"""Which commands there are, and where each lives. A command's module is imported only when that command is used.

Two families: Kafka's own tools (their names, flags and columns) and Headrace's verbs.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click

__all__ = ["COMMANDS", "CommandEntry", "CommandTable", "ReaderGone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """`module:command` and the line that `headrace --help` prints."""

    module: str
    family: str
    summary: str


_OURS = "Headrace"
_KAFKA = "As Kafka's own tools"


def _entry(module: str, family: str, summary: str) -> CommandEntry:
    return CommandEntry(module=f"headrace.cli.commands.{module}", family=family, summary=summary)


COMMANDS: dict[str, CommandEntry] = {
    "demo": _entry("demo", _OURS, "Two Spark applications, 336,776 real flights, one kill, and a verdict."),
    "run": _entry("run", _OURS, "Run an application, one or several instances of it, with a live table."),
    "check": _entry("check", _OURS, "Preflight of an application against the cluster."),
    "describe": _entry("describe", _OURS, "What an application reads, keeps and writes."),
    "verify": _entry("verify", _OURS, "Recompute an application as one Spark batch and compare."),
    "top": _entry("top", _OURS, "The live table of a streams group: who owns which tasks, and the lag."),
    "upgrade": _entry("upgrade", _OURS, "Make room for a changed topology; the group's positions are kept."),
    "prepare": _entry("prepare", _OURS, "Let applications start faster on this machine."),
    "broker": _entry("broker", _OURS, "Run the broker on one data directory."),
    "advise": _entry("advise", _OURS, "Findings on a client's configuration, with reasons, and a corrected file."),
    "explain": _entry("explain", _OURS, "The page of an error code, or of a rule of advise."),
    "topics": _entry("topics", _KAFKA, "Create, delete, list, describe and alter topics."),
    "console-producer": _entry("console_producer", _KAFKA, "Each line of standard input becomes a record."),
    "console-consumer": _entry("console_consumer", _KAFKA, "Print the records of a topic."),
    "streams-groups": _entry("streams_groups", _KAFKA, "List, describe, delete and reset streams groups."),
    "consumer-groups": _entry("consumer_groups", _KAFKA, "List, describe, delete and reset groups of consumers."),
    "groups": _entry("groups", _KAFKA, "List groups of every kind."),
    "configs": _entry("configs", _KAFKA, "Show and change settings of topics, brokers and groups."),
    "acls": _entry("acls", _KAFKA, "Show, add and remove access rules."),
    "features": _entry("features", _KAFKA, "Show and change finalised features of the cluster."),
}


class ReaderGone(Exception):
    """Whoever read our stdout (head, grep -q) has seen enough."""


class CommandTable(click.Group):
    """A group of commands that knows them by name and loads one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None  # click would end the process with exit code 1

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for family in dict.fromkeys(entry.family for entry in COMMANDS.values()):
            with formatter.section(family):
                formatter.write_dl([(name, e.summary) for name, e in COMMANDS.items() if e.family == family])
