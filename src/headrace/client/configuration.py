"""Client settings: Kafka's names and defaults, and the source of each value.

Sources, highest first: keyword arguments (`bootstrap_servers`), the `config` mapping in Kafka's spelling, environment
variables (`HEADRACE_` and the key in upper case), a properties file (`config="client.properties"` or
`HEADRACE_CONFIG`), defaults. An unknown key is refused with the most similar known one. Keys that only the Java client,
librdkafka use are ignored, with one log line; so are those that streams groups ignore (KIP-1071), with the group
setting that replaces each. `CLASSIC_ONLY` are used in classic groups.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from headrace.client.client_settings import CLIENT_SETTINGS, SECURITY_SETTINGS, ClientSetting, parsed, read_properties
from headrace.client.network_client import NetworkClient
from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError
from headrace.suggestions import nearest

__all__ = [
    "CLASSIC_ONLY",
    "IGNORED_UNDER_STREAMS",
    "SETTINGS",
    "ClientConfiguration",
    "warn_if_ignored",
    "without_client_settings",
]

log = logging.getLogger("headrace.client")

IGNORED_UNDER_STREAMS: Final = MappingProxyType(
    {
        "session.timeout.ms": "streams.session.timeout.ms",
        "heartbeat.interval.ms": "streams.heartbeat.interval.ms",
        "num.standby.replicas": "streams.num.standby.replicas",
        "rack.aware.assignment.tags": "streams.rack.aware.assignment.tags",
        "task.assignor.class": "streams.assignor.name",
        "acceptable.recovery.lag": None,
        "max.warmup.replicas": None,
        "probing.rebalance.interval.ms": None,
        "rack.aware.assignment.strategy": None,
        "rack.aware.assignment.traffic_cost": None,
        "rack.aware.assignment.non_overlap_cost": None,
        "partition.assignment.strategy": None,
        "group.remote.assignor": None,
    }
)
"""Client setting → setting of the group; None: nothing replaces it, the coordinator decides alone."""

CLASSIC_ONLY: Final = ("session.timeout.ms", "heartbeat.interval.ms", "num.standby.replicas")
"""Settings that members have in classic groups and that streams groups ignore."""

_SINCE_4_4: Final = frozenset({"streams.rack.aware.assignment.tags", "streams.assignor.name"})

# Once per process: an application makes a dozen clients from one configuration.
_warned: set[str] = set()


def warn_if_ignored(name: str) -> bool:
    """Return whether streams groups ignore this client setting, and log it once per process."""
    if name not in IGNORED_UNDER_STREAMS:
        return False
    if name not in _warned:
        _warned.add(name)
        log.warning("%s", _sentence(name, IGNORED_UNDER_STREAMS[name]))
    return True


def _sentence(name: str, replacement: str | None) -> str:
    if replacement is None:
        return f"{name} is ignored for streams groups: the group coordinator assigns tasks on its own"
    since = " (brokers from 4.4)" if replacement in _SINCE_4_4 else ""
    return (
        f"{name} is ignored for streams groups: set {replacement}{since} on the group (headrace configs, type groups)"
    )


log = logging.getLogger("headrace.client")

Source = Literal["argument", "config", "environment", "file", "default"]

_ENVIRONMENT_PREFIX: Final = "HEADRACE_"
_FILE_VARIABLE: Final = "HEADRACE_CONFIG"
_HIDDEN: Final = "••••"


SETTINGS: Final[Mapping[str, ClientSetting]] = MappingProxyType(
    {name: setting for name, setting in CLIENT_SETTINGS.items() if setting.default is not None}
)
"""Settings of clients and members; an application has some of them with other defaults, and some of its own."""

# Settings that a shared properties file may contain for Java clients or librdkafka. Refusing them would make such a
# file unusable; an unknown name is refused, because it is most often a mistake.
_MEANINGLESS_HERE: Final = frozenset(
    {
        "key.serializer",
        "value.serializer",
        "key.deserializer",
        "value.deserializer",
        "default.key.serde",
        "default.value.serde",
        "interceptor.classes",
        "metric.reporters",
        "enable.metrics.push",
        "partitioner.class",
        "buffer.memory",
        "linger.ms",
        "queue.buffering.max.ms",
        "queue.buffering.max.messages",
        "num.stream.threads",
        "cache.max.bytes.buffering",
        "statestore.cache.max.bytes",
        "socket.keepalive.enable",
        "log.connection.close",
    }
)


class ClientConfiguration(Mapping[str, Any]):
    """Effective values by Kafka's key, and the source of each. Immutable.

    `group_protocol` is the given `group.protocol`, None if there is none. A plain client does not use it, so that it
    can share files with members; a member checks it (`parse_group_protocol`).
    """

    group_protocol: str | None = None

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **keywords: object,
    ) -> None:
        """Args:
            config: Settings by Kafka's name, or the path of a properties file.
            environment: Environment variables; `os.environ` if not given.
            keywords: Settings with underscores; None counts as not given.

        Raises:
            ConfigError: `unknown-setting`, `bad-value`.
        """
        environment = os.environ if environment is None else environment
        # A path passed as `config` comes before the variable; a mapping does not exclude the file.
        path = environment.get(_FILE_VARIABLE) if config is None or isinstance(config, Mapping) else os.fspath(config)
        given: dict[str, tuple[object, Source]] = {}
        if path:
            # Lowest source first: later ones overwrite.
            _take(given, read_properties(Path(path)), "file", where=f"the file {path}")
        _take(given, _from_environment(environment), "environment", where="the environment")
        if isinstance(config, Mapping):
            _take(given, {key: v for key, v in config.items() if v is not None}, "config", where="config")
        # None is "not given": functions pass their optional arguments through.
        named = {name.replace("_", "."): value for name, value in keywords.items() if value is not None}
        _take(given, named, "argument", where="the arguments")
        protocol = given.pop("group.protocol", None)
        self.group_protocol = None if protocol is None else str(protocol[0])
        self._values: dict[str, Any] = {}
        self._sources: dict[str, Source] = {}
        for name, setting in SETTINGS.items():
            # Defaults are typed already; everything else is text or comes from a user.
            value, source = given.get(name, (setting.default, "default"))
            self._values[name] = value if source == "default" else parsed(setting, value)
            self._sources[name] = source

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bootstrap_servers(self) -> str:
        """The bootstrap addresses as `host:port,host:port`."""
        return ",".join(self["bootstrap.servers"])

    def network_client(self) -> NetworkClient:
        """Return a client of the cluster that these settings name."""
        return NetworkClient(
            self.bootstrap_servers,
            client_id=self["client.id"],
            request_timeout_ms=self["request.timeout.ms"],
            api_timeout_ms=self["default.api.timeout.ms"],
            security=self.security,
        )

    @property
    def security(self) -> ClientSecurity:
        """The security settings. Raises ConfigError `bad-value`."""
        return ClientSecurity.from_settings({name: self[name] for name in self if name in SECURITY_SETTINGS})

    def source(self, key: str) -> Source:
        """Return the source of a key's value."""
        return self._sources[key]

    def explain(self) -> tuple[tuple[str, str, Source], ...]:
        """Return (key, value, source) of every setting, with secrets hidden."""
        return tuple(
            (name, _HIDDEN if SETTINGS[name].secret else _shown(self._values[name]), self._sources[name])
            for name in SETTINGS
        )


def _take(given: dict[str, tuple[object, Source]], values: Mapping[str, object], source: Source, *, where: str) -> None:
    for key, value in values.items():
        if key in SETTINGS:
            given[key] = (value, source)
        elif key == "group.protocol":
            given[key] = (str(value), source)  # not used by plain clients; members check it
        elif warn_if_ignored(key):
            continue
        # Known, and not a setting of a plain client: one of an application's.
        elif key in _MEANINGLESS_HERE or key in CLIENT_SETTINGS:
            log.info("Ignoring %s: this client has no use for the setting", key)
        else:
            near = nearest(key, SETTINGS)
            hint = f"did you mean {near}?" if near else "docs/reference/settings.md lists all of them"
            raise ConfigError("unknown-setting", f"{where} has {key}, which is not a known setting", hint, key=key)


def without_client_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without client settings, for a process that has settings of its own."""
    ours = {_FILE_VARIABLE, *_variables()}
    return {variable: value for variable, value in environment.items() if variable not in ours}


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the values of known keys; other variables with the prefix belong to other programs and are ignored."""
    return {name: environment[variable] for variable, name in _variables().items() if variable in environment}


def _variables() -> dict[str, str]:
    """Return environment variable → setting."""
    known = {_ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in SETTINGS}
    # headrace.heartbeat.max.interval.ms is HEADRACE_HEARTBEAT_MAX_INTERVAL_MS, not HEADRACE_HEADRACE_…
    return known | {name.upper().replace(".", "_"): name for name in SETTINGS if name.startswith("headrace.")}


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
