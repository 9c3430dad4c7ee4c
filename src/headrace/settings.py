"""A setting as data: name, type, default, bounds. Brokers, topics and groups describe theirs as tables of these.

Names, types, defaults and the words of a refusal are Apache Kafka's (ConfigDef), so that what a Kafka tool prints about
us is what it prints about Kafka. Pure, below all packages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from headrace.errors import ConfigError
from headrace.suggestions import nearest

__all__ = ["Kind", "Setting", "Value", "list_of", "parse_value", "render_value", "unknown_setting"]

Kind = Literal["boolean", "string", "int", "short", "long", "double", "list", "class", "password"]
Value = bool | int | float | str
Number = int | float

_LARGEST = {"short": 2**15 - 1, "int": 2**31 - 1, "long": 2**63 - 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """`synonym` names the broker setting that a topic's or group's setting falls back to. `dynamic`: may be changed
    while the broker runs. `internal`: Kafka does not show it unless it was set. `any_case`: choices in any spelling."""

    name: str
    kind: Kind
    default: Value | None
    minimum: Number | None = None
    maximum: Number | None = None
    choices: tuple[str, ...] = ()
    any_case: bool = False
    may_be_empty: bool = True
    pattern: tuple[str, str] | None = None  # regular expression, and what to say when it does not match
    synonym: str | None = None
    dynamic: bool = False
    internal: bool = False
    documentation: str = ""


def parse_value(setting: Setting, given: object) -> Value:
    """The typed value; lists are texts with commas. Raises ConfigError("bad-value") in Kafka's words."""
    text = str(given).strip()
    match setting.kind:
        case "boolean":
            if text.lower() not in ("true", "false"):
                raise _bad_value(setting, given, "Expected value to be either true or false")
            return text.lower() == "true"
        case "short" | "int" | "long" | "double":
            return _number(setting, given, text)
        case "list":
            parts = [str(part).strip() for part in given] if isinstance(given, (list, tuple)) else list_of(text)
            _check_list(setting, given, parts)
            return ",".join(parts)
        case "string" | "class" | "password":
            _check_choice(setting, given, text)
            return text


def render_value(value: Value | None) -> str | None:
    """The text form Kafka's tools expect: booleans in lower case."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def list_of(text: str) -> list[str]:
    """The parts of a list setting; the empty text is the empty list."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def unknown_setting(name: str, known: Iterable[str]) -> ConfigError:
    """unknown-setting, with the name that was probably meant."""
    near = nearest(name, known)
    fix = f"Did you mean `{near}`?" if near else "Settings have Apache Kafka's names; see docs/reference/settings.md."
    return ConfigError("unknown-setting", f"There is no setting `{name}`.", fix, setting=name, nearest=near or "")


def _number(setting: Setting, given: object, text: str) -> Number:
    whole = setting.kind != "double"
    try:
        if whole and isinstance(given, float) and given.is_integer():
            text = str(int(given))
        value: Number = int(text) if whole else float(text)
    except ValueError:
        raise _bad_value(setting, given, f"Not a number of type {setting.kind.upper()}") from None
    if whole and not -_LARGEST[setting.kind] - 1 <= value <= _LARGEST[setting.kind]:
        raise _bad_value(setting, given, f"Not a number of type {setting.kind.upper()}")
    if setting.minimum is not None and value < setting.minimum:
        raise _bad_value(setting, value, f"Value must be at least {setting.minimum}")
    if setting.maximum is not None and value > setting.maximum:
        raise _bad_value(setting, value, f"Value must be no more than {setting.maximum}")
    return value


def _check_list(setting: Setting, given: object, parts: list[str]) -> None:
    if not parts and not setting.may_be_empty:
        valid = f" Valid values include: [{', '.join(setting.choices)}]" if setting.choices else ""
        raise _refusal(setting, given, f"Configuration '{setting.name}' must not be empty.{valid}")
    if any(not part for part in parts):
        raise _refusal(setting, given, f"Configuration '{setting.name}' values must not be empty.")
    for part in parts:
        if setting.choices and part not in setting.choices:
            raise _bad_value(setting, part, f"String must be one of: {', '.join(setting.choices)}")


def _check_choice(setting: Setting, given: object, text: str) -> None:
    known = [choice.lower() for choice in setting.choices] if setting.any_case else list(setting.choices)
    if setting.choices and (text.lower() if setting.any_case else text) not in known:
        case = " (case insensitive)" if setting.any_case else ""
        raise _bad_value(setting, given, f"String must be one of{case}: {', '.join(setting.choices)}")
    if setting.pattern is not None and not re.fullmatch(setting.pattern[0], text):
        raise _bad_value(setting, given, setting.pattern[1].format(value=text))


def _bad_value(setting: Setting, given: object, reason: str) -> ConfigError:
    return _refusal(setting, given, f"Invalid value {given} for configuration {setting.name}: {reason}")


def _refusal(setting: Setting, given: object, message: str) -> ConfigError:
    wanted = f"one of {', '.join(setting.choices)}" if setting.choices else f"of type {setting.kind}"
    if setting.minimum is not None:
        wanted += f", at least {setting.minimum}"
    if setting.maximum is not None:
        wanted += f", at most {setting.maximum}"
    fix = f"Set `{setting.name}` to a value that is {wanted}."
    return ConfigError("bad-value", message, fix, setting=setting.name, value=str(given))
