"""The page docs/reference/settings.md, generated from the tables of settings that the code itself uses."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.config.broker_configuration import BROKER_SETTINGS
from headrace.broker.config.kafka_setting_names import SETTINGS_WITHOUT_EFFECT
from headrace.broker.config.topic_configuration import TOPIC_SETTINGS
from headrace.client.client_settings import SECURITY_SETTINGS, ClientSetting
from headrace.client.configuration import SETTINGS
from headrace.client.consumer.consumer_settings import CONSUMER_SETTINGS
from headrace.coordinator.settings import GROUP_SETTINGS, GroupSetting
from headrace.settings import Setting, render_value
from headrace.spark.settings import SETTINGS as APPLICATION_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ENVIRONMENT_VARIABLES", "MEMBER_SETTINGS", "configuration_page"]

_HEAD = """\
# Configuration

This page is generated from the code by `python -m headrace.cli.docs --write`. Names, types, defaults and bounds are
Apache Kafka's; settings of Headrace's own begin with `headrace.`. An unknown name is refused with the nearest one.

| settings of | are given to |
|---|---|
| [the broker](#broker) | `headrace broker --config FILE`, `--config NAME=VALUE`; `headrace configs --broker 1` |
| [a topic](#topic) | `headrace topics --create --topic T --config NAME=VALUE`; `headrace configs --topic T` |
| [a group](#group) | `headrace configs --group G`, on the broker that coordinates the group |
| [an application](#application) | `StreamsApp(config={...})`, `headrace run APP --config FILE` |
| [a consumer](#consumer) | `Consumer(...)`, `AsyncConsumer(...)` |
| [a member](#member) | `StreamsMember(...)`, `--command-config FILE` of commands |
| [security of clients](#security-of-clients) | applications, consumers, members and commands alike |
| [the environment](#environment-variables) | variables of the process |
"""

_SERVER_SIDE = """\
Where a value of the broker, a topic or a group comes from, highest first: the topic's or group's own
(`headrace configs --alter --topic …`, `--group …`), this broker's (`--broker 1`), that of all brokers
(`--broker-defaults`), the one the broker was started with, the default. Values that are changed while the broker runs
are written to `headrace-configs.json` and `headrace-topics.json` of the data directory before they take effect.
`headrace configs --describe … --all` shows every value with its sources.

A changed setting of a group takes effect with the group's next heartbeat; `streams.num.standby.replicas` and
`streams.rack.aware.assignment.tags` cause a new assignment at once. A stored value outside the broker's bounds counts
as the nearest bound.

The kinds of groups that are served depend on `group.coordinator.rebalance.protocols` and on the features
`streams.version` and `group.version` (`headrace features describe`). With `streams.version` at 0 heartbeats and
descriptions of streams groups are refused with UNSUPPORTED_VERSION; groups and offsets stay.

A setting without a meaning in these tables means what it means in
[Apache Kafka](https://kafka.apache.org/documentation/#configuration).
"""

_NO_EFFECT = """\
Kafka's tools may also change these dynamic settings of Apache Kafka. They are stored and described, and have no effect
on this broker: \
"""

_APPLICATION = """\
Settings of `StreamsApp` ([run an application](../how-to/run.md)). `bootstrap.servers` is the argument
`bootstrap_servers=` or `headrace run --bootstrap-server`. In a streams group the
[group's own settings](#group) replace `session.timeout.ms`, `heartbeat.interval.ms` and `num.standby.replicas`, and a
warning names them; a [classic group](../how-to/any-kafka.md) has none of its own, so there the application's count.
"""
_CONSUMER = """\
Settings of `Consumer` and `AsyncConsumer` ([consumer](../how-to/consumer.md)): in `config` (a mapping, or the path of a
properties file), as environment variables such as `HEADRACE_GROUP_ID`, and the most used ones as arguments with
underscores. A name that only the Java client or
librdkafka knows is logged and ignored. [Security](#security-of-clients) is the same for all clients.
"""
_MEMBER = """\
Settings of `StreamsMember` ([members](../how-to/members.md)), and `group.protocol`: streams (the default), classic or
auto. Commands read `client.id`, the two timeouts of requests and the security settings of their `--command-config`.

{table}

For files that several programs share, a member also accepts and does not use: {unused}.
"""
_SECURITY = """\
How applications, consumers, members and commands reach their brokers ([security](../how-to/security.md)): in
`config`, in a properties file, or in the environment (`HEADRACE_SECURITY_PROTOCOL`, `HEADRACE_SASL_PASSWORD`).
"""
_ENVIRONMENT = """\
Every setting of a [consumer](#consumer), a [member](#member) and of
[security](#security-of-clients) can also be given as a variable: `HEADRACE_` and the name in upper case, with
underscores for dots (`group.id` is `HEADRACE_GROUP_ID`, `headrace.heartbeat.max.interval.ms` is
`HEADRACE_HEARTBEAT_MAX_INTERVAL_MS`). Arguments and `config` come before variables, variables before a properties file.
"""
_CLIENT_TITLES = ("setting", "type", "default", "bounds", "meaning")

# Listed by hand: `StreamsMember` shares its table of settings with other clients, and nothing in that table says which
# of them reads a row. tests/cli/test_configuration_page.py compares the page with the code.
MEMBER_SETTINGS: Final = (
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "group.instance.id",
    "application.server",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "num.standby.replicas",
    "rebalance.timeout.ms",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "headrace.heartbeat.max.interval.ms",
)
"""The settings that a StreamsMember uses, without those of security."""
_BROKER_TITLES = ("setting", "type", "default", "bounds", "dynamic", "meaning")


def configuration_page() -> str:
    """Return the whole page."""
    no_effect = SETTINGS_WITHOUT_EFFECT
    security = [SETTINGS[name] for name in SETTINGS if name in SECURITY_SETTINGS]
    consumer = [row for name, row in CONSUMER_SETTINGS.items() if name not in SECURITY_SETTINGS]
    return "\n".join(
        [
            _HEAD,
            _SERVER_SIDE,
            "## Broker\n",
            'Only those marked "dynamic" can be changed while the broker runs; a change of another one is refused.\n',
            *_table(_BROKER_TITLES, (_broker(row) for name, row in BROKER_SETTINGS.items() if name not in no_effect)),
            f"\n{_NO_EFFECT}{', '.join(f'`{name}`' for name in no_effect)}.",
            "\n## Topic\n",
            "All can be given when a topic is created, and be changed at any time.\n",
            *_table(("setting", "type", "default", "bounds", "falls back to"), map(_topic, TOPIC_SETTINGS.values())),
            "\n## Group\n",
            "All can be changed at any time, also before the group exists. Bounds with a name are the broker's.\n",
            *_table(_CLIENT_TITLES, map(_group, GROUP_SETTINGS.values())),
            "\n## Application\n",
            _APPLICATION,
            *_table(_CLIENT_TITLES, map(_application, APPLICATION_SETTINGS.values())),
            "\n## Consumer\n",
            _CONSUMER,
            *_table(_CLIENT_TITLES, map(_client, consumer)),
            "\n## Member\n",
            _member(),
            "## Security of clients\n",
            _SECURITY,
            *_table(_CLIENT_TITLES, map(_client, security)),
            "\n## Environment variables\n",
            _ENVIRONMENT,
            *_table(("variable", "read by", "meaning"), map(_variable, ENVIRONMENT_VARIABLES.items())),
            "",
        ]
    )


def _member() -> str:
    unused = [f"`{name}`" for name in SETTINGS if name not in MEMBER_SETTINGS and name not in SECURITY_SETTINGS]
    table = "\n".join(_table(_CLIENT_TITLES, (_client(SETTINGS[name]) for name in MEMBER_SETTINGS)))
    return _MEMBER.format(table=table, unused=", ".join(unused))


def _variable(row: tuple[str, tuple[str, str]]) -> tuple[str, ...]:
    name, (reader, meaning) = row
    return f"`{name}`", reader, meaning


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return [f"| {' | '.join(cell or ' ' for cell in line)} |" for line in lines]


def _broker(setting: Setting) -> tuple[str, ...]:
    dynamic = "dynamic" if setting.dynamic else ""
    return f"`{setting.name}`", setting.kind, _default(setting), _bounds(setting), dynamic, _meaning(setting)


def _group(row: GroupSetting) -> tuple[str, ...]:
    setting = row.setting
    # A group's setting without a value of its own takes the broker's, so the broker's name is the more useful
    # "default".
    default = f"`{setting.synonym}`" if setting.synonym is not None else _default(setting)
    limits = [_bounds(setting), *(f"`{name}`" for name in (row.lowest, row.highest) if name is not None)]
    return f"`{setting.name}`", setting.kind, default, ", ".join(part for part in limits if part), _meaning(setting)


def _topic(setting: Setting) -> tuple[str, ...]:
    synonym = f"`{setting.synonym}`" if setting.synonym is not None else ""
    return f"`{setting.name}`", setting.kind, _default(setting), _bounds(setting), synonym


def _client(setting: ClientSetting) -> tuple[str, ...]:
    return _client_row(setting, setting.default)


def _application(setting: ClientSetting) -> tuple[str, ...]:
    return _client_row(setting, setting.in_application)


def _client_row(setting: ClientSetting, default: Any) -> tuple[str, ...]:
    shown = ",".join(default) if isinstance(default, tuple) else render_value(default)
    bounds = f"≥ {setting.lowest}" if setting.lowest is not None else ""
    if setting.choices:
        bounds = f"one of {', '.join(setting.choices)}"
    return f"`{setting.name}`", setting.kind, shown or "empty", bounds, setting.meaning


def _meaning(setting: Setting) -> str:
    return setting.documentation + (" (internal)" if setting.internal else "")


def _default(setting: Setting) -> str:
    if setting.default is None:
        return "none"
    return render_value(setting.default) or "empty"


def _bounds(setting: Setting) -> str:
    parts = []
    if setting.minimum is not None:
        parts.append(f"≥ {setting.minimum}")
    if setting.maximum is not None:
        parts.append(f"≤ {setting.maximum}")
    if setting.choices:
        parts.append(f"{'of' if setting.kind == 'list' else 'one of'} {', '.join(setting.choices)}")
    return ", ".join(parts)


ENVIRONMENT_VARIABLES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "HEADRACE_BOOTSTRAP_SERVERS": (
            "clients, commands, applications",
            "The brokers, where neither an argument nor an option names them. Default: localhost:9092.",
        ),
        "HEADRACE_CONFIG": (
            "clients, commands, applications",
            "A properties file with client settings. An application reads only its addresses and security settings.",
        ),
        "HEADRACE_EXECUTOR_STATE_DIR": (
            "executors of a Spark cluster",
            (
                "Where slots on executors keep their stores: a local disk of each host, set by "
                "`spark.executorEnv.HEADRACE_EXECUTOR_STATE_DIR`. Default: `headrace-state` in the executor's working "
                "directory."
            ),
        ),
        "HEADRACE_STATE_DIR": (
            "applications",
            (
                "Where applications keep their state, each in a subdirectory of its name. Default: `headrace` below "
                "XDG_STATE_HOME or `~/.local/state` (macOS: `~/Library/Application Support`)."
            ),
        ),
        "HEADRACE_CACHE_DIR": (
            "applications, prepare",
            "Where `headrace prepare` keeps the class archive. Default: `headrace` below XDG_CACHE_HOME or `~/.cache`.",
        ),
        "HEADRACE_DEBUG": ("commands", "Any value: print the traceback of an error, and what Spark prints."),
        "HEADRACE_PLAIN": ("commands", "Any value: text without live tables, as when stdout is no terminal."),
        "NO_COLOR": ("commands", "Any value: no colour on a terminal either."),
        "JAVA_HOME": ("applications", "The Java runtime for Spark. Default: `java` in PATH."),
        "MASTER": (
            "applications",
            "Spark's master, where the application names none. Must be local. Default: local[*].",
        ),
        "NOTIFY_SOCKET": ("broker", "Set by systemd: the broker reports that it is ready, and that it is alive."),
        "HEADRACE_TELEMETRY": ("`headrace telemetry`", "Set by the command for its processes: its options as JSON."),
        "HEADRACE_UI_LOGIN": ("`headrace ui`", "The login of the page, `user:password`."),
    }
)
"""Variable → who reads it, and what it means."""
