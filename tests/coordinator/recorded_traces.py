"""Reads the recorded traces: Java's toString() of replies and records, as plain Python values."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_GROUP = re.compile(r"group state=(\w+) epoch=(\d+) assign=(\d+)")
_TOKEN = re.compile(r"\s*(?:'((?:[^']|'(?=[^,\])=]))*)'|([A-Za-z_][\w.-]*|-?\d+)|(.))")


@dataclass
class RecordedStep:
    name: str
    response: dict[str, Any] | None = None
    error: str | None = None
    records: list[tuple[str, dict[str, Any] | None]] = field(default_factory=list)
    group: tuple[str, int, int] | None = None
    """State, group epoch and assignment epoch after the step."""


def read_traces(path: Path) -> dict[str, list[RecordedStep]]:
    """Scenario → steps."""
    scenarios: dict[str, list[RecordedStep]] = {}
    steps: list[RecordedStep] = []
    for line in path.read_text().splitlines():
        text = line.strip()
        if text.startswith("#####"):
            steps = scenarios.setdefault(text.removeprefix("#####").strip(), [])
        elif text.startswith("--"):
            steps.append(RecordedStep(name=text.removeprefix("--").strip()))
        elif text.startswith("resp"):
            steps[-1].response = parse(text.removeprefix("resp "))
        elif text.startswith("EXC"):
            match = re.search(r"error=(\w+)", text)
            steps[-1].error = match.group(1).lower() if match else text
        elif (group := _GROUP.match(text)) is not None:
            steps[-1].group = group[1], int(group[2]), int(group[3])
        elif text.startswith("rec"):
            key, _, value = text.removeprefix("rec ").partition(" => ")
            name = key.split(" ")[0].removeprefix("StreamsGroup").removesuffix("Key")
            steps[-1].records.append((name, None if value == "null" else parse(value)))
    return scenarios


def parse(text: str) -> Any:
    """`Name(key=value, ...)` → dict, `[...]` → list, quoted text, numbers, null, true, false, bare words."""
    tokens = [match for match in _TOKEN.finditer(text) if match.group().strip()]
    value, position = _value(tokens, 0)
    assert position == len(tokens), f"left over: {tokens[position:]}"
    return value


def _value(tokens: list[re.Match[str]], at: int) -> tuple[Any, int]:
    token = tokens[at]
    if token.group(3) == "[":
        return _items(tokens, at + 1)
    if token.group(2) is None:
        return token.group().strip()[1:-1], at + 1
    word = token.group(2)
    if at + 1 < len(tokens) and tokens[at + 1].group(3) == "(":
        return _fields(tokens, at + 2)
    known: dict[str, Any] = {"null": None, "true": True, "false": False}
    if word in known:
        return known[word], at + 1
    return (int(word) if re.fullmatch(r"-?\d+", word) else word), at + 1


def _items(tokens: list[re.Match[str]], at: int) -> tuple[list[Any], int]:
    items = []
    while tokens[at].group(3) != "]":
        item, at = _value(tokens, at)
        items.append(item)
        if tokens[at].group(3) == ",":
            at += 1
    return items, at + 1


def _fields(tokens: list[re.Match[str]], at: int) -> tuple[dict[str, Any], int]:
    fields = {}
    while tokens[at].group(3) != ")":
        name = tokens[at].group(2)
        fields[name], at = _value(tokens, at + 2)
        if tokens[at].group(3) == ",":
            at += 1
    return fields, at + 1
