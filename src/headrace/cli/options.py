"""Options that several commands share, in Kafka's spelling."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = [
    "DEFAULT_BOOTSTRAP_SERVERS",
    "application_argument",
    "application_config_option",
    "bootstrap_option",
    "client_settings",
    "command_config_option",
    "console_config_option",
    "exactly_one",
    "json_option",
    "key_value_pairs",
    "open_admin",
    "read_properties",
    "selection_options",
    "timeout_option",
]

DEFAULT_BOOTSTRAP_SERVERS = "localhost:9092"
Function = TypeVar("Function", bound=Callable[..., Any])


# Kafka's tools require the option and have no default. Here a command without it must work right after `headrace
# broker`; click keeps where the value came from (ParameterSource), and `error_fixes.py` shows it.
def bootstrap_option(function: Function) -> Function:
    """`--bootstrap-server`, which may be left out: environment, else localhost:9092."""
    return click.option(
        "--bootstrap-server",
        "bootstrap_servers",
        metavar="HOST:PORT[,…]",
        envvar="HEADRACE_BOOTSTRAP_SERVERS",
        default=DEFAULT_BOOTSTRAP_SERVERS,
        show_default="$HEADRACE_BOOTSTRAP_SERVERS, else localhost:9092",
        help="The broker or brokers to connect to.",
    )(function)


def json_option(function: Function) -> Function:
    """`--json`: one document on stdout."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON document instead of text.")(function)


def command_config_option(function: Function) -> Function:
    """`--command-config`: a properties file for the connection."""
    return _command_config("--command-config")(function)


def console_config_option(older_name: str) -> Callable[[Function], Function]:
    """`--command-config`, and the name it had in Kafka's console tools before 4.2."""
    return _command_config("--command-config", older_name, "command_config")


def _command_config(*names: str) -> Callable[[Function], Function]:
    return click.option(
        *names,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A properties file with client settings, such as security.protocol or request.timeout.ms.",
    )


def selection_options(*, only_topics: str, not_topics: str) -> Callable[[Function], Function]:
    """`--group-filter` to `--max-partitions`: what is collected, passed to the command as `selection`.

    Args:
        only_topics: Begins the help of `--topic-filter`.
        not_topics: Begins the help of `--topic-exclude`.
    """
    options = (
        click.option("--group-filter", metavar="REGEX", help="Only groups whose whole name matches (RE2 syntax)."),
        click.option("--group-exclude", metavar="REGEX", help="Not the groups whose whole name matches."),
        click.option("--topic-filter", metavar="REGEX", help=f"{only_topics} whose whole name matches."),
        click.option(
            "--topic-exclude",
            metavar="REGEX",
            default="__consumer_offsets|__transaction_state|__share_group_state",
            show_default=True,
            help=f"{not_topics} whose whole name matches.",
        ),
        click.option(
            "--max-groups", type=click.IntRange(min=1), default=1_000, show_default=True, help="Groups at most."
        ),
        click.option(
            "--max-partitions",
            type=click.IntRange(min=1),
            default=20_000,
            show_default=True,
            help="Partitions at most.",
        ),
    )

    def add(function: Function) -> Function:
        @functools.wraps(function)
        def selecting(
            *,
            group_filter: str | None,
            group_exclude: str | None,
            topic_filter: str | None,
            topic_exclude: str,
            max_groups: int,
            max_partitions: int,
            **others: Any,
        ) -> Any:
            from headrace.cli.exporter.cluster_snapshot import Selection
            from headrace.cli.exporter.name_filter import NameFilter

            selection = Selection(
                groups=NameFilter(include=group_filter, exclude=group_exclude),
                topics=NameFilter(include=topic_filter, exclude=topic_exclude),
                max_groups=max_groups,
                max_partitions=max_partitions,
            )
            return function(selection=selection, **others)

        with_options: Any = selecting
        for option in reversed(options):
            with_options = option(with_options)
        return with_options  # type: ignore[no-any-return]

    return add


def application_config_option(function: Function) -> Function:
    """`--config`: settings of the application, those of the connection too."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        metavar="FILE",
        help="Settings of the application, NAME=VALUE lines, Kafka's names; security.protocol and its like too.",
    )(function)


# 30 s covers a coordinator that loads its log after a restart: COORDINATOR_LOAD_IN_PROGRESS is retried within this
# time. A single request is bounded by request.timeout.ms of --command-config.
def timeout_option(function: Function) -> Function:
    """`--timeout`: how long a call may take."""
    return click.option(
        "--timeout",
        "timeout_ms",
        type=click.IntRange(min=1),
        default=30_000,
        show_default=True,
        metavar="MS",
        help="How long a request, with its repetitions, may take.",
    )(function)


def open_admin(
    bootstrap_servers: str, *, client_id: str, timeout_ms: int | None = None, command_config: Path | None = None
) -> Admin:
    """An Admin by `client_settings`; options of the command line come before them. Raises ConfigError."""
    from headrace.client.admin import Admin

    return Admin(bootstrap_servers, **client_settings(client_id, timeout_ms=timeout_ms, command_config=command_config))


def client_settings(
    client_id: str, *, timeout_ms: int | None = None, command_config: Path | None = None
) -> dict[str, Any]:
    """Arguments of a NetworkClient: what the file says, or without one the environment (HEADRACE_CONFIG names a file,
    HEADRACE_SECURITY_PROTOCOL and its like say single things). Raises ConfigError."""
    from headrace.client.configuration import ClientConfiguration

    # An empty environment where a file is given: one of the two describes the connection. A password from
    # HEADRACE_SASL_PASSWORD beside a file for another cluster would be sent to the wrong brokers.
    configuration = ClientConfiguration(command_config, environment=None if command_config is None else {})
    # Brokers show the client id in quotas, logs and group descriptions: the command's own name (`headrace-topics`) is
    # more useful there than the library's default, but an id that the user configured may carry a quota.
    named = configuration.source("client.id") != "default"
    return {
        "client_id": configuration["client.id"] if named else client_id,
        "request_timeout_ms": configuration["request.timeout.ms"],
        "api_timeout_ms": timeout_ms if timeout_ms is not None else configuration["default.api.timeout.ms"],
        "security": configuration.security,
    }


def application_argument(function: Function) -> Function:
    """`APP`: a file or a module."""
    return click.argument("application", metavar="APP")(function)


def exactly_one(given: dict[str, bool]) -> str:
    """The one option that was given; wrong usage otherwise."""
    chosen = [name for name, value in given.items() if value]
    if len(chosen) != 1:
        raise click.UsageError(f"Give exactly one of {', '.join(given)}.")
    return chosen[0]


def key_value_pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """`("a=1", "b=2")` → {"a": "1", "b": "2"}."""
    pairs = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise click.UsageError(f"{option} takes NAME=VALUE, not {text!r}.")
        pairs[name.strip()] = value
    return pairs


def read_properties(path: Path) -> dict[str, str]:
    """A file in Kafka's properties format: NAME=VALUE lines, `#` and `!` comments, `\\` at a line's end goes on."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            "bad-value",
            f"{path} cannot be read: {(error.strerror or str(error)).lower()}",
            "name a file of NAME=VALUE lines",
        ) from None
    settings = {}
    # Java's Properties format as far as Kafka's files use it: continued lines, two comment characters, blanks around
    # names and values. `:` as separator and Unicode escapes are not read; a line without `=` is an error instead of a
    # setting with an empty value, because it is nearly always a mistake.
    for line in text.replace("\\\n", "").splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        name, separator, value = stripped.partition("=")
        if not separator:
            raise ConfigError("bad-value", f"{path} has a line without '=': {stripped}", "write NAME=VALUE")
        settings[name.strip()] = value.strip()
    return settings
