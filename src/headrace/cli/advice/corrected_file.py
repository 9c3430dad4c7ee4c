"""The file with the advice in it: lines that stay stay as they are, comments and order included."""

from __future__ import annotations

import json
from collections.abc import Mapping

from headrace.cli.advice.given_configuration import GivenConfiguration
from headrace.client.client_settings import parse_properties

__all__ = ["corrected_text"]


def corrected_text(text: str, given: GivenConfiguration, corrected: GivenConfiguration) -> str:
    """`text` is the file that `given` was read from."""
    if given.form == "json":
        return _corrected_json(text, corrected.values)
    lines: list[str] = []
    written: set[str] = set()
    for names, block in _blocks(text):
        if not names or all(given.given(name) == corrected.given(name) for name in names):
            lines += block
        else:
            lines += [f"# was: {line}" for line in block]
            lines += [
                _line(name, corrected.values[name]) for name in names if name in corrected.values.keys() - written
            ]
        written.update(names)
    lines += [_line(name, value) for name, value in corrected.values.items() if name not in written]
    return "\n".join(lines) + "\n"


def _blocks(text: str) -> list[tuple[list[str], list[str]]]:
    """(settings, lines): a setting may go over several lines, each but the last ending in a backslash."""
    blocks: list[tuple[list[str], list[str]]] = []
    block: list[str] = []
    for line in text.splitlines():
        comment = not block and line.lstrip()[:1] in ("#", "!", "")
        block.append(line)
        if not comment and (len(line) - len(line.rstrip("\\"))) % 2:
            continue
        blocks.append((list(parse_properties("\n".join(block))), block))
        block = []
    if block:
        blocks.append((list(parse_properties("\n".join(block))), block))
    return blocks


def _line(name: str, value: str) -> str:
    return f"{name}={value}".replace("\\", "\\\\").replace("\n", "\\n")


def _corrected_json(text: str, values: Mapping[str, str]) -> str:
    """Values that did not change keep their JSON type; others become numbers and booleans where they look like it."""
    before = json.loads(text)
    document = {}
    for name, value in values.items():
        old = before.get(name)
        kept = str(old).lower() if isinstance(old, bool) else str(old)
        document[name] = old if old is not None and kept == value else _typed(value)
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _typed(value: str) -> object:
    if value in ("true", "false"):
        return value == "true"
    return int(value) if value.isdigit() else value
