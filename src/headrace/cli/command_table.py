"""Which commands there are, and where each lives. A command's module is imported only when that command is used.

Two families: Kafka's own tools (their names, flags and columns) and Headrace's verbs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import click
from click.shell_completion import CompletionItem

from headrace.cli.error_fixes import complete_fix
from headrace.errors import HeadraceError
from headrace.extras import require_extra
from headrace.suggestions import nearest

__all__ = ["COMMANDS", "CommandEntry", "CommandTable", "OutputClosed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandEntry:
    """`module:command`, the line that `headrace --help` prints, and the extra without which the command cannot work."""

    module: str
    family: str
    summary: str
    extra: str | None = None


def _entry(module: str, family: str, summary: str, *, extra: str | None = None) -> CommandEntry:
    return CommandEntry(module=f"headrace.cli.commands.{module}", family=family, summary=summary, extra=extra)


_APPLICATION = "Applications"
_SERVER = "Broker and clients"
_KAFKA = "As Kafka's own tools"
_OTHER = "Help"

# The order is that of `headrace --help` and of docs/reference/cli.md: first what a new user needs. Summaries stand here
# instead of being read from the commands, because `--help` would have to import every command for 22 lines of text.
COMMANDS: dict[str, CommandEntry] = {
    "demo": _entry("demo", _APPLICATION, "Two Spark applications, 336,776 flights, one kill, a verdict.", extra="demo"),
    "run": _entry("run", _APPLICATION, "Run one or several instances of an application.", extra="spark"),
    "check": _entry("check", _APPLICATION, "Check an application against the cluster.", extra="spark"),
    "describe": _entry("describe", _APPLICATION, "Show what an application reads, keeps and writes.", extra="spark"),
    "verify": _entry("verify", _APPLICATION, "Recompute results as one Spark batch and compare.", extra="spark"),
    "top": _entry("top", _APPLICATION, "Watch a streams group: tasks, owners, lag."),
    "upgrade": _entry("upgrade", _APPLICATION, "Keep a group's positions for a changed topology."),
    "capacity": _entry("capacity", _APPLICATION, "Estimate what an application needs of Spark and Kafka."),
    "nexmark": _entry("nexmark", _APPLICATION, "Run one query of the Nexmark benchmark, verified.", extra="spark"),
    "prepare": _entry("prepare", _APPLICATION, "Make applications start faster on this machine.", extra="spark"),
    "broker": _entry("broker", _SERVER, "Run the broker on one data directory."),
    "advise": _entry("advise", _SERVER, "Check a client's configuration and write a corrected file."),
    "doctor": _entry("doctor", _SERVER, "Find out why a group is in trouble."),
    "recorder": _entry("recorder", _SERVER, "Record the history of groups beside any Kafka."),
    "telemetry": _entry("telemetry", _SERVER, "Summarize the metrics of clients by group and team.", extra="spark"),
    "ui": _entry("ui", _SERVER, "Serve a web page of any Kafka: brokers, topics, groups.", extra="ui"),
    "exporter": _entry("exporter", _SERVER, "Serve Prometheus metrics of any Kafka: groups, lag, topics."),
    "topics": _entry("topics", _KAFKA, "Create, delete, list, describe and alter topics."),
    "console-producer": _entry("console_producer", _KAFKA, "Produce each line of standard input as a record."),
    "console-consumer": _entry("console_consumer", _KAFKA, "Print the records of a topic."),
    "streams-groups": _entry("streams_groups", _KAFKA, "List, describe, delete and reset streams groups."),
    "consumer-groups": _entry("consumer_groups", _KAFKA, "List, describe, delete and reset consumer groups."),
    "groups": _entry("groups", _KAFKA, "List groups of every kind."),
    "configs": _entry("configs", _KAFKA, "Show and change settings of topics, brokers and groups."),
    "acls": _entry("acls", _KAFKA, "Show, add and remove access rules."),
    "features": _entry("features", _KAFKA, "Show and change finalized features of the cluster."),
    "explain": _entry("explain", _OTHER, "Explain an error code or a rule of advise."),
    "completion": _entry("completion", _OTHER, "Print a completion script for bash, zsh or fish."),
}


class OutputClosed(Exception):
    """The reader of stdout (head, grep -q) closed the pipe."""


class CommandTable(click.Group):
    """A group of commands that knows them by name and loads one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        return _load(cmd_name) if cmd_name in COMMANDS else None

    # Overridden for the message only. Users of Kafka's distribution type `headrace kafka-topics.sh`: prefix and suffix
    # are taken off before the nearest name is looked up, so that this finds `topics`.
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if args and not name.startswith("-") and name not in COMMANDS:
            near = nearest(name.removeprefix("kafka-").removesuffix(".sh"), COMMANDS)
            ctx.fail(f"No such command {name!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click's own version imports the module of every command for its summary.
        commands = [
            CompletionItem(name, help=entry.summary) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # `headrace topics --list | head -1` is not a failure. The exception is a class of our own, because click's
            # `main` ends the process on every OSError with EPIPE, before `main.run` could see it.
            raise OutputClosed from None  # click would end the process with exit code 1

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for family in dict.fromkeys(entry.family for entry in COMMANDS.values()):
            with formatter.section(family):
                formatter.write_dl([(name, e.summary) for name, e in COMMANDS.items() if e.family == family])


# Cached, because `_load` replaces the callback: loading a command twice (help, then invocation) would wrap it twice and
# add the address to each fix twice.
@cache
def _load(name: str) -> click.Command:
    entry = COMMANDS[name]
    command = importlib.import_module(entry.module).command
    assert isinstance(command, click.Command)
    assert command.callback is not None
    command.callback = _checked(command.callback, entry.extra)
    return command


def _checked(callback: Callable[..., Any], extra: str | None) -> Callable[..., Any]:
    """Wrap a command: missing packages fail before any work begins, and fixes fit this command line."""

    @wraps(callback)
    def run(*arguments: Any, **options: Any) -> Any:
        if extra is not None:
            require_extra(extra)
        try:
            return callback(*arguments, **options)
        except HeadraceError as error:
            complete_fix(error, click.get_current_context())
            raise

    return run
