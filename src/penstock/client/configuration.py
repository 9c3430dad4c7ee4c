"""Client settings: Kafka's names and defaults, and where each value comes from.

Sources, highest first: keyword arguments (`bootstrap_servers`), the `config` mapping in Kafka's spelling, environment
(`PENSTOCK_` and the key in upper case), a properties file (`config="client.properties"` or `PENSTOCK_CONFIG`),
defaults. An unknown key is refused with the nearest known one; keys that only mean something to the Java client or to
librdkafka, or to the classic protocol, are passed over with one line that says so.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from penstock.client.ignored_settings import warn_if_ignored
from penstock.client.network_client import NetworkClient
from penstock.client.properties_file import read_properties
from penstock.errors import ConfigError
from penstock.near_names import nearest

__all__ = ["SETTINGS", "ClientConfiguration", "Setting"]

log = logging.getLogger("penstock.client")

Source = Literal["argument", "config", "environment", "file", "default"]
Kind = Literal["string", "int", "boolean", "list"]

_ENVIRONMENT_PREFIX: Final = "PENSTOCK_"
_FILE_VARIABLE: Final = "PENSTOCK_CONFIG"
_HIDDEN: Final = "••••"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One key. `choices` empty: any value; `lowest` None: any number."""

    name: str
    kind: Kind
    default: Any
    choices: tuple[str, ...] = ()
    lowest: int | None = None
    secret: bool = False


def _table(*settings: Setting) -> Mapping[str, Setting]:
    return MappingProxyType({setting.name: setting for setting in settings})


def _ms(name: str, default: int, lowest: int = 0) -> Setting:
    return Setting(name=name, kind="int", default=default, lowest=lowest)


_ISOLATION_LEVELS: Final = ("read_committed", "read_uncommitted")

SETTINGS: Final = _table(
    Setting(name="bootstrap.servers", kind="list", default=("localhost:9092",)),
    Setting(name="client.id", kind="string", default="penstock"),
    Setting(name="client.rack", kind="string", default=""),
    Setting(name="group.instance.id", kind="string", default=""),
    Setting(name="application.server", kind="string", default=""),
    _ms("rebalance.timeout.ms", 300_000, 1),
    _ms("request.timeout.ms", 30_000, 1),
    _ms("default.api.timeout.ms", 60_000, 1),
    _ms("max.poll.interval.ms", 300_000, 1),
    Setting(name="isolation.level", kind="string", default="read_committed", choices=_ISOLATION_LEVELS),
    Setting(name="auto.offset.reset", kind="string", default="earliest", choices=("earliest", "latest", "none")),
    Setting(name="fetch.max.bytes", kind="int", default=16 << 20, lowest=1),
    Setting(name="max.partition.fetch.bytes", kind="int", default=8 << 20, lowest=1),
    Setting(name="acks", kind="string", default="all", choices=("all", "-1", "1")),
    Setting(name="batch.size", kind="int", default=1_000_000, lowest=1),
    Setting(name="compression.type", kind="string", default="none", choices=("none", "gzip", "snappy", "lz4", "zstd")),
    Setting(name="enable.idempotence", kind="boolean", default=True),
    _ms("penstock.heartbeat.max.interval.ms", 500, 1),
)

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
        "group.protocol",
        "num.stream.threads",
        "cache.max.bytes.buffering",
        "statestore.cache.max.bytes",
        "socket.keepalive.enable",
        "log.connection.close",
    }
)


class ClientConfiguration(Mapping[str, Any]):
    """Effective values by Kafka's key; also where each comes from. Immutable."""

    def __init__(
        self,
        config: Mapping[str, object] | str | os.PathLike[str] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        **keywords: object,
    ) -> None:
        """`keywords` that are None count as not given. Raises ConfigError `unknown-setting`, `bad-value`."""
        environment = os.environ if environment is None else environment
        path = environment.get(_FILE_VARIABLE) if config is None or isinstance(config, Mapping) else os.fspath(config)
        given: dict[str, tuple[object, Source]] = {}
        if path:
            _take(given, read_properties(Path(path)), "file", where=f"the file {path}")
        _take(given, _from_environment(environment), "environment", where="the environment")
        if isinstance(config, Mapping):
            _take(given, {key: v for key, v in config.items() if v is not None}, "config", where="config")
        named = {name.replace("_", "."): value for name, value in keywords.items() if value is not None}
        _take(given, named, "argument", where="the arguments")
        self._values: dict[str, Any] = {}
        self._sources: dict[str, Source] = {}
        for name, setting in SETTINGS.items():
            value, source = given.get(name, (setting.default, "default"))
            self._values[name] = value if source == "default" else _parsed(setting, value)
            self._sources[name] = source

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bootstrap_servers(self) -> str:
        """As `host:port,host:port`."""
        return ",".join(self["bootstrap.servers"])

    def network_client(self) -> NetworkClient:
        """A client of the cluster that these settings name."""
        return NetworkClient(
            self.bootstrap_servers,
            client_id=self["client.id"],
            request_timeout_ms=self["request.timeout.ms"],
            api_timeout_ms=self["default.api.timeout.ms"],
        )

    def source(self, key: str) -> Source:
        """Where the value of a key comes from."""
        return self._sources[key]

    def explain(self) -> tuple[tuple[str, str, Source], ...]:
        """(key, value, source) of every setting, secrets hidden."""
        return tuple(
            (name, _HIDDEN if SETTINGS[name].secret else _shown(self._values[name]), self._sources[name])
            for name in SETTINGS
        )


def _take(given: dict[str, tuple[object, Source]], values: Mapping[str, object], source: Source, *, where: str) -> None:
    for key, value in values.items():
        if key in SETTINGS:
            given[key] = (value, source)
        elif warn_if_ignored(key):
            continue
        elif key in _MEANINGLESS_HERE:
            log.info("%s means nothing here and is passed over", key)
        else:
            near = nearest(key, SETTINGS)
            hint = f"did you mean {near}?" if near else "penstock explain settings lists all of them"
            raise ConfigError("unknown-setting", f"{where} has {key}, which is no known setting", hint, key=key)


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Only keys that are known: other programs may use the prefix, and none of them shall stop us."""
    known = {_ENVIRONMENT_PREFIX + name.upper().replace(".", "_"): name for name in SETTINGS}
    # penstock.heartbeat.max.interval.ms is PENSTOCK_HEARTBEAT_MAX_INTERVAL_MS, not PENSTOCK_PENSTOCK_…
    known |= {name.upper().replace(".", "_"): name for name in SETTINGS if name.startswith("penstock.")}
    return {name: environment[variable] for variable, name in known.items() if variable in environment}


def _parsed(setting: Setting, value: object) -> Any:
    match setting.kind:
        case "int":
            return _parsed_int(setting, value)
        case "boolean":
            text = str(value).strip().lower()
            if text not in {"true", "false"}:
                raise _bad_value(setting, value, "true or false")
            return text == "true"
        case "list":
            parts = value.split(",") if isinstance(value, str) else value
            if not isinstance(parts, list | tuple):
                raise _bad_value(setting, value, "a list, or a text with commas")
            found = tuple(str(part).strip() for part in parts if str(part).strip())
            if not found:
                raise _bad_value(setting, value, "at least one entry")
            return found
        case "string":
            text = str(value).strip()
            if setting.choices and text not in setting.choices:
                raise _bad_value(setting, value, "one of " + ", ".join(setting.choices))
            return text


def _parsed_int(setting: Setting, value: object) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        raise _bad_value(setting, value, "a whole number") from None
    if setting.lowest is not None and number < setting.lowest:
        raise _bad_value(setting, value, f"at least {setting.lowest}")
    return number


def _bad_value(setting: Setting, value: object, expected: str) -> ConfigError:
    return ConfigError(
        "bad-value", f"{setting.name} is {value!r}, which cannot be", f"give {expected}", key=setting.name
    )


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
