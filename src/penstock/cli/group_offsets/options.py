"""The options of `--reset-offsets`, the same in all of Kafka's group tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

__all__ = ["reset_options"]

Function = TypeVar("Function", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--to-offset", type=int, metavar="N", help="Reset to this offset."),
    click.option("--to-earliest", is_flag=True, help="Reset to the beginning of the log."),
    click.option("--to-latest", is_flag=True, help="Reset to the end of the log."),
    click.option("--to-current", is_flag=True, help="Keep the committed positions (to --export them)."),
    click.option(
        "--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss", help="Reset to the first record at or after it (UTC)."
    ),
    click.option("--by-duration", metavar="PnDTnHnMnS", help="Reset to this long before now."),
    click.option("--shift-by", type=int, metavar="N", help="Move each position by N, forwards or backwards."),
    click.option(
        "--from-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Reset to the positions of a CSV file, as --export writes it.",
    ),
    click.option("--dry-run", is_flag=True, help="With --reset-offsets: only show the new positions."),
    click.option("--execute", is_flag=True, help="With --reset-offsets: do it."),
    click.option("--export", is_flag=True, help="With --reset-offsets: print the new positions as CSV."),
)


def reset_options(function: Function) -> Function:
    """Where positions go, and whether they do."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
