"""Reset plans as CSV, as kafka-streams-groups exports and reads them: `topic,partition,offset`, or the group before.

Quoted as Jackson does it: a text of more than 24 characters, or with a character below "-", stands in quotes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from headrace.errors import ConfigError

__all__ = ["ResetPlan", "plan_lines", "read_plan"]

ResetPlan = Mapping[str, Mapping[tuple[str, int], int]]  # group → partition → new position

_LONGEST_PLAIN = 24
_FIRST_PLAIN = "-"


def plan_lines(plan: ResetPlan, *, with_group: bool) -> list[str]:
    """One line per partition, in order."""
    return [
        ",".join([*([_quoted(group_id)] if with_group else []), _quoted(topic), str(partition), str(offset)])
        for group_id, offsets in plan.items()
        for (topic, partition), offset in sorted(offsets.items())
    ]


def _quoted(text: str) -> str:
    if len(text) <= _LONGEST_PLAIN and all(character >= _FIRST_PLAIN for character in text):
        return text
    return '"' + text.replace('"', '""') + '"'


def read_plan(path: Path, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
    """The plan of a file. Three columns belong to the one group that was named. Raises ConfigError `bad-value`."""
    named = list(groups)
    plan: dict[str, dict[tuple[str, int], int]] = {}
    for number, row in enumerate(_rows(path), start=1):
        if not row:
            continue
        if len(row) == 3 and len(named) == 1:
            row = [named[0], *row]
        try:
            group_id, topic, partition, offset = row
            plan.setdefault(group_id, {})[topic, int(partition)] = int(offset)
        except ValueError:
            raise ConfigError(
                "bad-value",
                f"line {number} of {path} is no position: {','.join(row)}",
                "write topic,partition,offset for a single --group, else group,topic,partition,offset",
            ) from None
    return plan


def _rows(path: Path) -> list[list[str]]:
    try:
        return list(csv.reader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise ConfigError(
            "bad-value", f"{path} cannot be read: {why}", "name a file that --export has written"
        ) from None
