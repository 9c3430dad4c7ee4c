"""Output and input of a terminal: data to stdout, messages to stderr, errors in one form, single keys.

Colour and live tables appear only on a terminal. rich is imported only where something is drawn, so that a listing
starts fast.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import sys
import termios
import time
import tty
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import Console

    from headrace.errors import HeadraceError

__all__ = [
    "Column",
    "Keys",
    "align",
    "console",
    "data",
    "echo_err",
    "end_with",
    "is_terminal",
    "kafka_table",
    "keys",
    "print_error",
    "print_json",
    "width",
]


def data(line: str = "") -> None:
    """Print one line of data to stdout."""
    click.echo(line)


def echo_err(line: str = "") -> None:
    """Print one line for the user to stderr."""
    click.echo(line, err=True)


def print_json(document: object) -> None:
    """Print one document to stdout."""
    click.echo(json.dumps(document, indent=2, default=_plain, ensure_ascii=False))


def is_terminal() -> bool:
    """Whether a person looks at stdout. `HEADRACE_PLAIN=1` says no; so does TERM=dumb."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("HEADRACE_PLAIN")


def width() -> int:
    """Columns of the terminal; 120 where there is none."""
    return shutil.get_terminal_size((120, 40)).columns if is_terminal() else 120


# Width 120 without a terminal: rich would assume 80 columns and wrap lines of a log.
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
    # `where` and `why` are facts like others in the exception; in the document they stand beside the message, because a
    # reader of the JSON needs them as often as a reader of the text.
    facts = dict(error.facts)
    labelled: dict[str, object] = {name: facts.pop(name) for name in ("where", "why") if name in facts}
    document: dict[str, object] = {"code": error.code, "message": error.message, **labelled, "fix": error.fix}
    return document | {"facts": facts, "exit_code": exit_code}


def _red(line: str) -> str:
    return click.style(line, fg="red", bold=True)


def _as_it_is(line: str) -> str:
    return line


def _plain(value: Any) -> object:
    # The order matters: a dataclass may hold any of the others, and `asdict` copies deeply before json asks again. Sets
    # are sorted, so that two runs print the same text.
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


Column = tuple[str, int]  # title, least width; 0: the last column, not padded


def kafka_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, grow: Iterable[str] = ()) -> list[str]:
    """Lines of the table, header first. Columns in `grow` become as wide as their longest value."""
    texts = [[str(value) for value in row] for row in rows]
    growing = set(grow)
    # Kafka's tools print with `%-15s` and widths that are fixed or the longest value's, depending on the column. A
    # value that is longer than a fixed column moves the rest of its row, as in Kafka.
    widths = []
    for index, (title, least) in enumerate(columns):
        longest = max((len(row[index]) for row in texts), default=0) if title in growing else 0
        widths.append(max(least, longest))
    return [_line([title for title, _ in columns], widths), *(_line(row, widths) for row in texts)]


def align(rows: Sequence[Sequence[str]], *, indent: str = "", gap: str = "  ") -> list[str]:
    """Our own tables: columns as wide as they need, trailing blanks cut."""
    if not rows:
        return []
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [
        indent + gap.join(text.ljust(size) for text, size in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _line(values: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(value.ljust(size) for value, size in zip(values, widths, strict=True))


class Keys:
    """`wait(seconds)` gives the key pressed in that time, an empty string when none was."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    def wait(self, seconds: float) -> str:
        if self._descriptor is None:
            time.sleep(seconds)
            return ""
        ready, _, _ = select.select([self._descriptor], [], [], seconds)
        return os.read(self._descriptor, 1).decode("ascii", "ignore").lower() if ready else ""


@contextlib.contextmanager
def keys() -> Iterator[Keys]:
    """Keys of the terminal on standard input; where there is none, nothing is ever pressed."""
    if not sys.stdin.isatty():
        yield Keys(None)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)  # Ctrl-C still interrupts
        yield Keys(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def end_with(code: int) -> NoReturn:
    """End the program with this exit code.

    Under `python -m`, CPython ends by SIGINT instead when a KeyboardInterrupt ever went through code that was executed
    from a string, even if caught (`dataclass` and `namedtuple` make their methods that way, so an interrupt
    in the middle of an import is enough). Executing another string makes it forget that.
    """
    exec("")
    sys.exit(code)
