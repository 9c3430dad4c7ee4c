"""The text of `sasl.jaas.config`: `org.….PlainLoginModule required username="a" user_a="secret";`. Pure.

Also what a file of users for SASL PLAIN holds. No password stands in any error.
"""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["jaas_options", "read_users", "users_of"]

_TOKEN = re.compile(r'\s*(?:([A-Za-z0-9_.$-]+)\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^\s;"]+)))')
_MODULE = re.compile(r"\s*([A-Za-z0-9_.$]+)\s+(required|requisite|sufficient|optional)\b", re.IGNORECASE)


def jaas_options(setting: str, text: str) -> dict[str, str]:
    """The options of the login module. Raises ConfigError `bad-value`."""
    module = _MODULE.match(text)
    if module is None:
        raise _refusal(setting)
    options: dict[str, str] = {}
    position = module.end()
    while (found := _TOKEN.match(text, position)) is not None:
        quoted, bare = found[2], found[3]
        options[found[1]] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = found.end()
    if text[position:].strip() != ";":
        raise _refusal(setting)
    return options


def users_of(options: dict[str, str]) -> dict[str, str]:
    """User name → password, of a broker's PlainLoginModule."""
    return {name.removeprefix("user_"): value for name, value in options.items() if name.startswith("user_")}


def read_users(path: Path) -> dict[str, str]:
    """A file of lines `name=password`; `#` begins a comment. Raises ConfigError `bad-value`."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = (getattr(error, "strerror", None) or "it is not UTF-8").lower()
        raise ConfigError("bad-value", f"{path} cannot be read: {reason}.", "Name a file of name=password.") from None
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, separator, password = line.partition("=")
        if not separator or not name.strip() or not password:
            raise ConfigError("bad-value", f"Line {number} of {path} is no name=password.", "Write one user per line.")
        users[name.strip()] = password
    return users


def _refusal(setting: str) -> ConfigError:
    return ConfigError(
        "bad-value",
        f"`{setting}` is not understood.",
        'Write it as Kafka does: org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="…";',
        setting=setting,
    )
