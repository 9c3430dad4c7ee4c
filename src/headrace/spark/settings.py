"""Application settings beyond the arguments of `StreamsApp`, under Kafka's names where Kafka has the setting.

Usage: `StreamsApp(config={"max.poll.interval.ms": 60_000})`. An unknown name is an error that suggests the nearest
known one. The table of settings is in `client_settings`, with defaults that suit micro-batches. Connection settings
(`security.protocol`, `ssl.*`, `sasl.*`) are read by `ClientConfiguration`, as for all clients, and kept apart because
they hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.client.client_settings import CLIENT_SETTINGS, SECURITY_SETTINGS, ClientSetting, parsed
from headrace.client.configuration import CLASSIC_ONLY, ClientConfiguration, warn_if_ignored
from headrace.client.membership.streams_protocol import parse_group_protocol
from headrace.client.security import ClientSecurity
from headrace.errors import ConfigError
from headrace.suggestions import nearest

__all__ = ["SETTINGS", "checked_config", "connection_settings", "warn_of_classic_settings"]

SETTINGS: Mapping[str, ClientSetting] = {
    name: setting for name, setting in CLIENT_SETTINGS.items() if setting.in_application is not None
}


def checked_config(given: Mapping[str, object] | None) -> dict[str, int | str]:
    """Return every setting except those of security, with defaults filled in. Raises ConfigError."""
    values = {name: setting.in_application for name, setting in SETTINGS.items() if setting.in_application is not None}
    for name, value in (given or {}).items():
        if name in SECURITY_SETTINGS:
            continue
        if name == "group.protocol":
            values[name] = parse_group_protocol(str(value), member="a StreamsApp")
            continue
        if name not in SETTINGS:
            if warn_if_ignored(str(name)):
                continue
            near = nearest(str(name), SETTINGS)
            hint = f'; did you mean "{near}"?' if near else ""
            raise ConfigError("unknown-setting", f'no setting "{name}"{hint}', f"known: {', '.join(SETTINGS)}")
        values[name] = parsed(SETTINGS[name], value)
    return values


def warn_of_classic_settings(config: Mapping[str, object]) -> None:
    """Log the settings of classic groups that have another value than their default, for a streams group."""
    for name in CLASSIC_ONLY:
        if config[name] != SETTINGS[name].in_application:
            warn_if_ignored(name)


def connection_settings(
    bootstrap_servers: str | Sequence[str] | None, given: Mapping[str, object] | None
) -> tuple[str, ClientSecurity]:
    """Return the connection settings: from arguments, `given`, environment and configuration file.

    Raises:
        ConfigError: for an invalid setting.
    """
    secured = {name: value for name, value in (given or {}).items() if name in SECURITY_SETTINGS}
    configuration = ClientConfiguration(secured, bootstrap_servers=bootstrap_servers)
    return configuration.bootstrap_servers, configuration.security
