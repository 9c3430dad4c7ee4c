"""Settings of a consumer: Kafka's names, types and bounds, and the source of each value.

Defaults are Kafka's, with three exceptions: `isolation.level` is read_committed, `group.protocol` is consumer (with
classic as fallback where brokers lack KIP-848), and a Fetch may be larger, because Arrow batches gain from size.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from headrace.client.client_settings import (
    CLIENT_SETTINGS,
    SECURITY_SETTINGS,
    ClientSetting,
    Default,
    Kind,
    parsed,
    read_properties,
)
from headrace.client.configuration import ClientConfiguration, Source
from headrace.client.security import ClientSecurity, TokenProvider
from headrace.errors import ConfigError
from headrace.suggestions import nearest

__all__ = ["CONSUMER_SETTINGS", "ConsumerConfiguration"]

log = logging.getLogger("headrace.client")


def _row(
    name: str, kind: Kind, default: Default, meaning: str, lowest: int | None = None, **more: Any
) -> ClientSetting:
    return ClientSetting(name=name, kind=kind, default=default, meaning=meaning, lowest=lowest, **more)


_SHARED: Final = (
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "request.timeout.ms",
    "default.api.timeout.ms",
    "isolation.level",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "headrace.heartbeat.max.interval.ms",
)
_OWN: Final = (
    _row("group.id", "string", "", "the group; needed to subscribe and to commit"),
    _row("group.protocol", "string", "consumer", "how the group assigns", choices=("consumer", "classic")),
    _row("group.instance.id", "string", "", "a static member: a restart within the session moves nothing"),
    _row("group.remote.assignor", "string", "", "consumer: uniform or range; empty: the group's choice"),
    # Kafka's default pair: the group starts with range, and can move to cooperative-sticky in one rolling restart.
    _row("partition.assignment.strategy", "list", ("range", "cooperative-sticky"), "classic: assignors by preference"),
    _row("session.timeout.ms", "int", 45_000, "classic: time without heartbeats after which a member is removed", 1),
    _row("heartbeat.interval.ms", "int", 3_000, "classic: time between heartbeats", 1),
    _row("max.poll.interval.ms", "int", 300_000, "longest time between polls; then the member leaves its group", 1),
    # Kafka has 500. Rows of an Arrow batch cost no object each, so small polls would waste the decoder.
    _row("max.poll.records", "int", 10_000, "the most records of one poll", 1),
    _row("enable.auto.commit", "boolean", True, "polls commit what earlier polls returned"),
    _row("auto.commit.interval.ms", "int", 5_000, "time between automatic commits", 0),
    _row(
        "auto.offset.reset", "string", "latest", "without a committed offset: earliest, latest, none, by_duration:PT1H"
    ),
    _row("fetch.min.bytes", "int", 1, "bytes that a broker waits for before it answers a Fetch", 0),
    _row("fetch.max.wait.ms", "int", 500, "longest time that it waits for them", 0),
    _row("metadata.max.age.ms", "int", 300_000, "time between lookups of topics and partitions", 1),
)

CONSUMER_SETTINGS: Final[Mapping[str, ClientSetting]] = MappingProxyType(
    {row.name: row for row in (*(CLIENT_SETTINGS[name] for name in _SHARED), *_OWN)}
    | {name: CLIENT_SETTINGS[name] for name in CLIENT_SETTINGS if name in SECURITY_SETTINGS}
)

# Setting → the group protocol that reads it, and what to do under the other one. The Java consumer refuses the first
# three under `group.protocol=consumer`; here they still apply when brokers without KIP-848 make it fall back.
_ONLY_UNDER: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "session.timeout.ms": ("classic", "set consumer.session.timeout.ms on the group (headrace configs --group)"),
        "heartbeat.interval.ms": (
            "classic",
            "set consumer.heartbeat.interval.ms on the group (headrace configs --group)",
        ),
        "partition.assignment.strategy": ("classic", "set group.remote.assignor, or group.protocol=classic"),
        "group.remote.assignor": ("consumer", "set partition.assignment.strategy, or group.protocol=consumer"),
    }
)

# Settings of the Java consumer and of librdkafka without a meaning here, accepted so that one file serves all clients.
_PASSED_OVER: Final = frozenset(
    {
        "key.deserializer",
        "value.deserializer",
        "interceptor.classes",
        "metric.reporters",
        "metrics.num.samples",
        "metrics.recording.level",
        "metrics.sample.window.ms",
        "enable.metrics.push",
        "auto.include.jmx.reporter",
        "allow.auto.create.topics",
        "exclude.internal.topics",
        "check.crcs",
        "client.dns.lookup",
        "connections.max.idle.ms",
        "receive.buffer.bytes",
        "send.buffer.bytes",
        "reconnect.backoff.ms",
        "reconnect.backoff.max.ms",
        "retry.backoff.ms",
        "retry.backoff.max.ms",
        "socket.connection.setup.timeout.ms",
        "socket.connection.setup.timeout.max.ms",
        "socket.keepalive.enable",
        "log.connection.close",
        "queued.min.messages",
        "queued.max.messages.kbytes",
        "enable.partition.eof",
        "enable.auto.offset.store",
    }
)
_ENVIRONMENT_PREFIX: Final = "HEADRACE_"
_FILE_VARIABLE: Final = "HEADRACE_CONFIG"


class ConsumerConfiguration(ClientConfiguration):
    """Effective values by Kafka's key, from the sources of `ClientConfiguration`. Immutable."""

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
        path = environment.get(_FILE_VARIABLE) if config is None or isinstance(config, Mapping) else os.fspath(config)
        layers: list[tuple[Source, str, Mapping[str, object]]] = []
        if path:
            layers.append(("file", f"the file {path}", read_properties(Path(path))))
        layers.append(("environment", "the environment", _from_environment(environment)))
        if isinstance(config, Mapping):
            layers.append(("config", "config", {key: value for key, value in config.items() if value is not None}))
        named = {name.replace("_", "."): value for name, value in keywords.items() if value is not None}
        layers.append(("argument", "the arguments", named))
        self._values: dict[str, Any] = {name: row.default for name, row in CONSUMER_SETTINGS.items()}
        self._sources: dict[str, Source] = dict.fromkeys(CONSUMER_SETTINGS, "default")
        # Lowest source first, so that later ones overwrite.
        for source, where, values in layers:
            for key, value in values.items():
                if _known(key, where, in_file=source == "file"):
                    self._values[key] = parsed(CONSUMER_SETTINGS[key], value)
                    self._sources[key] = source
        self._check_heartbeat_interval()
        self._warn_of_other_protocol()

    def _check_heartbeat_interval(self) -> None:
        # As Kafka's `Heartbeat`: with equal values every late heartbeat would end the session.
        heartbeat_ms, session_ms = self["heartbeat.interval.ms"], self["session.timeout.ms"]
        if heartbeat_ms >= session_ms:
            raise ConfigError(
                "bad-value",
                f"Invalid heartbeat.interval.ms '{heartbeat_ms}': expected less than session.timeout.ms, "
                f"which is {session_ms}.",
                f"Set heartbeat.interval.ms to at most a third of the session: {max(1, session_ms // 3)}.",
                key="heartbeat.interval.ms",
            )

    def _warn_of_other_protocol(self) -> None:
        """Log each setting that was given and has no effect under the group protocol in use."""
        protocol = self["group.protocol"]
        for name, (applies_to, remedy) in _ONLY_UNDER.items():
            if applies_to == protocol or self.source(name) == "default":
                continue
            fallback = " unless the brokers lack KIP-848" if applies_to == "classic" else ""
            log.warning("%s has no effect with group.protocol=%s%s; %s", name, protocol, fallback, remedy)

    def security_with(self, token_provider: TokenProvider | None) -> ClientSecurity:
        """Return how brokers are reached, with a token provider for OAUTHBEARER.

        Raises:
            ConfigError: `bad-value`.
        """
        given = {name: self[name] for name in self if name in SECURITY_SETTINGS}
        return ClientSecurity.from_settings(given, token_provider=token_provider)

    def explain(self) -> tuple[tuple[str, str, Source], ...]:
        """Return (key, value, source) of every setting, with secrets hidden."""
        return tuple(
            (name, "••••" if CONSUMER_SETTINGS[name].secret else _shown(self._values[name]), self._sources[name])
            for name in CONSUMER_SETTINGS
        )


def _known(key: str, where: str, *, in_file: bool) -> bool:
    if key in CONSUMER_SETTINGS:
        return True
    # A file may be shared with other clients, so their settings pass there; as an argument they are a mistake.
    if key in _PASSED_OVER or (in_file and key in CLIENT_SETTINGS):
        log.info("Ignoring %s: a consumer has no use for this setting", key)
        return False
    near = nearest(key, CONSUMER_SETTINGS)
    hint = f"did you mean {near}?" if near else "docs/reference/settings.md lists all of them"
    raise ConfigError("unknown-setting", f"{where} has {key}, which is not a setting of a consumer", hint, key=key)


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name in CONSUMER_SETTINGS:
        variable = name.upper().replace(".", "_")
        # headrace.heartbeat.max.interval.ms is HEADRACE_HEARTBEAT_MAX_INTERVAL_MS, without the prefix twice.
        if not variable.startswith(_ENVIRONMENT_PREFIX):
            variable = _ENVIRONMENT_PREFIX + variable
        if variable in environment:
            found[name] = environment[variable]
    return found


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)
