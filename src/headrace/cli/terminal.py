"""Output streams: data to stdout, messages to stderr, errors in one form; colour only on a terminal.

rich is imported only where something is drawn, so that a listing starts fast.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "data", "is_terminal", "print_error", "print_json", "talk", "width"]


def data(line: str = "") -> None:
    """One line of data, to stdout."""
    click.echo(line)


def talk(line: str = "") -> None:
    """One line for the person, to stderr."""
    click.echo(line, err=True)


def print_json(document: object) -> None:
    """One document to stdout."""
    click.echo(json.dumps(document, indent=2, default=_plain, ensure_ascii=False))


def is_terminal() -> bool:
    """Whether a person looks at stdout. `HEADRACE_PLAIN=1` says no; so does TERM=dumb."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("HEADRACE_PLAIN")


def width() -> int:
    """Columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size((120, 40)).columns if is_terminal() else 120


def console() -> Console:
    """Return the console for tables and screens: stdout, coloured only on a terminal without NO_COLOR."""
    from rich.console import Console

    return Console(file=sys.stdout, width=None if is_terminal() else 120, highlight=False, soft_wrap=not is_terminal())


def print_error(error: HeadraceError, *, exit_code: int = 1, as_json: bool = False) -> None:
    """Print an error to stderr: `error[code]: …` with where, why and fix, or one JSON object on one line."""
    if as_json:
        click.echo(
            json.dumps({"error": _error_document(error, exit_code)}, default=_plain, ensure_ascii=False), err=True
        )
        return
    paint: Callable[[str], str] = _red if sys.stderr.isatty() and not os.environ.get("NO_COLOR") else _as_it_is
    first, _, rest = error.render().partition("\n")
    click.echo(paint(first), err=True)
    if rest:
        click.echo(rest, err=True)


def _error_document(error: HeadraceError, exit_code: int) -> dict[str, object]:
    facts = dict(error.facts)
    labelled: dict[str, object] = {name: facts.pop(name) for name in ("where", "why") if name in facts}
    document: dict[str, object] = {"code": error.code, "message": error.message, **labelled, "fix": error.fix}
    return document | {"facts": facts, "exit_code": exit_code}


def _red(line: str) -> str:
    return click.style(line, fg="red", bold=True)


def _as_it_is(line: str) -> str:
    return line


def _plain(value: Any) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, (UUID, Path)):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    return str(value)
