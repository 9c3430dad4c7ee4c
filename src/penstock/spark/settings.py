"""Settings of an application beyond the arguments of `StreamsApp`, by Kafka's names where Kafka has one.

`StreamsApp(config={"max.poll.interval.ms": 60_000})`. An unknown name is an error with the nearest known one. The table
is `client_settings`, with the defaults that suit micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.client.client_settings import CLIENT_SETTINGS, ClientSetting, parsed
from penstock.client.ignored_settings import warn_if_ignored
from penstock.errors import ConfigError
from penstock.near_names import nearest

__all__ = ["SETTINGS", "checked_config"]

SETTINGS: Mapping[str, ClientSetting] = {
    name: setting for name, setting in CLIENT_SETTINGS.items() if setting.in_application is not None
}


def checked_config(given: Mapping[str, object] | None) -> dict[str, int | str]:
    """Every setting with its value, defaults included. Raises ConfigError: unknown-setting, bad-value."""
    values = {name: setting.in_application for name, setting in SETTINGS.items() if setting.in_application is not None}
    for name, value in (given or {}).items():
        if name not in SETTINGS:
            if warn_if_ignored(str(name)):
                continue
            near = nearest(str(name), SETTINGS)
            hint = f'; did you mean "{near}"?' if near else ""
            raise ConfigError("unknown-setting", f'no setting "{name}"{hint}', f"known: {', '.join(SETTINGS)}")
        values[name] = parsed(SETTINGS[name], value)
    return values
