"""A setting as data: name, type, default, bounds. Brokers and topics describe theirs as tables of these.

Names, types and defaults are Kafka's, so that what a Kafka tool prints about us is what it prints about Kafka.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from penstock.errors import ConfigError

__all__ = ["Kind", "Setting", "Value", "parse_value", "render_value", "unknown_setting"]

Kind = Literal["boolean", "string", "int", "long", "double", "list"]
Value = bool | int | float | str

_NUMBERS = ("int", "long")
_LARGEST = {"int": 2**31 - 1, "long": 2**63 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`synonym` names the broker setting a topic setting falls back to; `read_only` ones need a restart."""

    name: str
    kind: Kind
    default: Value | None
    minimum: int | None = None
    choices: tuple[str, ...] = ()
    synonym: str | None = None
    documentation: str = ""


def parse_value(setting: Setting, given: object) -> Value:
    """The typed value, or ConfigError("bad-value") that names the setting and what it takes."""
    try:
        value = _convert(setting, given)
    except (TypeError, ValueError):
        raise _bad_value(setting, given) from None
    if setting.kind in _NUMBERS and isinstance(value, int):
        too_small = setting.minimum is not None and value < setting.minimum
        if too_small or value > _LARGEST[setting.kind]:
            raise _bad_value(setting, given)
    if setting.choices and any(part not in setting.choices for part in _parts(setting, value)):
        raise _bad_value(setting, given)
    return value


def render_value(value: Value | None) -> str | None:
    """The text form Kafka's tools expect: booleans in lower case."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def unknown_setting(name: str, known: Mapping[str, Setting]) -> ConfigError:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    fix = f"Did you mean `{near[0]}`?" if near else "Settings have Apache Kafka's names; see docs/configuration."
    return ConfigError(
        "unknown-setting", f"There is no setting `{name}`.", fix, setting=name, nearest=near[0] if near else ""
    )


def _convert(setting: Setting, given: object) -> Value:
    if setting.kind == "boolean":
        text = str(given).strip().lower()
        if text not in ("true", "false"):
            raise ValueError(text)
        return text == "true"
    if setting.kind in _NUMBERS:
        if isinstance(given, (bool, float)) and int(given) != given:
            raise ValueError(given)
        return int(given if isinstance(given, (int, float)) else str(given).strip())
    if setting.kind == "double":
        return float(given if isinstance(given, (int, float)) else str(given).strip())
    if setting.kind == "list" and isinstance(given, (list, tuple)):
        return ",".join(str(part) for part in given)
    return str(given).strip()


def _parts(setting: Setting, value: Value) -> list[str]:
    text = str(value)
    return [part.strip() for part in text.split(",") if part.strip()] if setting.kind == "list" else [text]


def _bad_value(setting: Setting, given: object) -> ConfigError:
    wanted = f"one of {', '.join(setting.choices)}" if setting.choices else f"of type {setting.kind}"
    if setting.minimum is not None:
        wanted += f", at least {setting.minimum}"
    return ConfigError(
        "bad-value",
        f"Invalid value {given} for configuration {setting.name}: it has to be {wanted}.",
        f"Set `{setting.name}` to a value that is {wanted}.",
        setting=setting.name,
        value=str(given),
    )
