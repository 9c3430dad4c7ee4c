"""Java's properties format, as far as Kafka's configuration files use it: comments, continued lines, escapes."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["parse_properties", "read_properties"]

_SEPARATOR = re.compile(r"(?<!\\)(?:\s*[=:]\s*|\s+)")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> dict[str, str]:
    """Raises ConfigError `bad-value` when the file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "bad-value", f"the file {path} cannot be read: {error}", "check its path and rights"
        ) from error
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values; the last value of a key that comes twice wins, as in Java."""
    found: dict[str, str] = {}
    logical = ""
    for line in text.splitlines():
        part = line.lstrip()
        if not logical and (not part or part[0] in "#!"):
            continue
        logical += part
        if (len(logical) - len(logical.rstrip("\\"))) % 2:
            logical = logical[:-1]
            continue
        _add(found, logical)
        logical = ""
    if logical:
        _add(found, logical)
    return found


def _add(found: dict[str, str], line: str) -> None:
    separator = _SEPARATOR.search(line)
    if separator is None:
        found[_unescape(line)] = ""
    else:
        found[_unescape(line[: separator.start()])] = _unescape(line[separator.end() :])


def _unescape(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match.group(1)
        return chr(int(code[1:], 16)) if len(code) == 5 else _CONTROL.get(code, code)

    return _ESCAPE.sub(plain, text)
