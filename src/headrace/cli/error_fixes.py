"""Fixes of errors in terms of the command line: options, the address that was given, the nearest name of a setting."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.core import ParameterSource

from headrace.cli.terminal import print_error
from headrace.errors import HeadraceError
from headrace.suggestions import nearest

__all__ = ["address_fix", "complete_fix", "report_error"]

_SOURCES = {
    ParameterSource.COMMANDLINE: "from --bootstrap-server",
    ParameterSource.ENVIRONMENT: "from HEADRACE_BOOTSTRAP_SERVERS",
}
_SETTING = re.compile(r"set bootstrap\.servers \(now [^)]*\) to ")
_COMMAND = re.compile(r"\bheadrace (?P<name>[a-z][a-z-]*)")


# The broker's words are Apache Kafka's, which name no alternative.
_UNKNOWN_SETTING = re.compile(r"Unknown (?P<kind>topic|group) config name: (?P<name>[\w.-]+)")


def complete_fix(error: HeadraceError, context: click.Context) -> None:
    """Complete the fix of an error of a command. Changes `error.fix`."""
    # 1. The nearest name comes first, the broker's advice stays behind it: the guess may be wrong.
    unknown = _UNKNOWN_SETTING.search(error.message) if error.code == "bad-setting" else None
    if unknown is not None:
        near = nearest(unknown["name"], _settings(unknown["kind"]))
        error.fix = f"did you mean {near}?  else:  {error.fix}" if near else error.fix
    # 2. A malformed address is found by the client, which names its setting; on a command line that setting is an
    #    option.
    if error.code == "bad-value" and error.message.startswith("bootstrap.servers"):
        error.fix = f"set --bootstrap-server{_in_use(context)} to HOST:PORT, such as localhost:9092"
    # 3. Last, because the steps before may have put commands into the fix.
    error.fix = address_fix(error.fix, context)


def report_error(error: HeadraceError, *, as_json: bool) -> None:
    """Print one of several errors of a command that goes on, in the form that `--json` asks for."""
    # No context in tests and in library use of the same functions; the error is printed as it is then.
    context = click.get_current_context(silent=True)
    if context is not None:
        complete_fix(error, context)
    print_error(error, as_json=as_json)


def _settings(kind: str) -> Iterable[str]:
    from headrace.broker.config.topic_configuration import TOPIC_SETTINGS
    from headrace.coordinator.settings import GROUP_SETTINGS

    return TOPIC_SETTINGS if kind == "topic" else GROUP_SETTINGS


def address_fix(fix: str, context: click.Context) -> str:
    """Return a fix in terms of the options of the command line, with the address in use.

    Fixes are written by the client, which knows the setting `bootstrap.servers` but neither the option nor the variable
    that it came from. Commands inside a fix get the `--bootstrap-server` of this command line; without it they would
    run against another cluster.
    """
    servers, source = context.params.get("bootstrap_servers"), context.get_parameter_source("bootstrap_servers")
    fix = _SETTING.sub(f"set --bootstrap-server{_in_use(context)} to ", fix)
    if "--command-config" in _options(context.command):
        fix = fix.replace("check security.protocol:", "set security.protocol in --command-config FILE:")
    # Only an address from this command line is repeated: one from the environment or the default reaches the proposed
    # command by itself.
    if servers and source is ParameterSource.COMMANDLINE and "--bootstrap-server" not in fix:
        fix = _with_address(fix, str(servers), context.find_root())
    return fix


def _in_use(context: click.Context) -> str:
    servers, source = context.params.get("bootstrap_servers"), context.get_parameter_source("bootstrap_servers")
    return f" (now {servers}, {_SOURCES.get(source, 'the default')})" if servers and source else ""


def _with_address(fix: str, servers: str, root: click.Context) -> str:
    """Insert the option directly after the command's name: there, the end of the command need not be found."""

    def addressed(found: re.Match[str]) -> str:
        return f"{found[0]} --bootstrap-server {servers}" if _connects(found["name"], root) else found[0]

    return _COMMAND.sub(addressed, fix)


def _connects(name: str, root: click.Context) -> bool:
    group = root.command
    # Loads the command named in the fix. Errors are rare, and the table of commands alone does not know which of them
    # connect.
    command = group.get_command(root, name) if isinstance(group, click.Group) else None
    return command is not None and "--bootstrap-server" in _options(command)


def _options(command: click.Command) -> set[str]:
    return {spelling for parameter in command.params for spelling in parameter.opts}
