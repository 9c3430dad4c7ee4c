"""Writes docs/cli.md (every command's --help), docs/configuration.md and docs/errors/index.md.

`python -m penstock.cli.docs --write`.

Without `--write` it says whether they are up to date (exit code 1 when not); a test does the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from penstock.cli.command_table import COMMANDS
from penstock.cli.configuration_page import configuration_page
from penstock.cli.error_pages import error_codes, error_page
from penstock.cli.main import penstock

__all__ = ["cli_page", "errors_page", "pages"]

HELP_WIDTH = 100
_HEAD = """# Commands

This page is written by `python -m penstock.cli.docs --write`.

Data goes to stdout, talk to stderr; `--json` prints one document; no colour when stdout is no terminal. Exit codes:
0 done, 1 failed, 2 wrong usage, 3 no connection, 130 interrupted; `verify` has 0 equal, 4 differs, 5 cannot tell. An
error is one line that says what happened, and what to do: `penstock explain CODE` prints its page
([all of them](errors/index.md)), `penstock --debug …` shows the traceback. `--bootstrap-server` may be left out:
`PENSTOCK_BOOTSTRAP_SERVERS`, else `localhost:9092`.
"""


def pages() -> dict[str, str]:
    """Path below docs/ → what should stand there."""
    return {"cli.md": cli_page(), "configuration.md": configuration_page(), "errors/index.md": errors_page()}


def cli_page() -> str:
    """One section per command, in the order of `penstock --help`."""
    parts = [_HEAD, _section("penstock", penstock, None)]
    root = click.Context(penstock, info_name="penstock", terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH)
    for name in COMMANDS:
        command = penstock.get_command(root, name)
        if command is not None:
            parts.append(_section(f"penstock {name}", command, root))
    return "\n".join(parts)


def _section(title: str, command: click.Command, parent: click.Context | None) -> str:
    name = title.rpartition(" ")[2]
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH,
        help_option_names=["-h", "--help"],
    )  # fmt: skip
    return f"## {title}\n\n```\n{command.get_help(context)}\n```\n"


def errors_page() -> str:
    """A table of all codes with their first sentence."""
    rows = []
    for code in error_codes():
        meaning = (error_page(code) or "").split("\n\n")[1]
        rows.append(f"| [{code}](../../src/penstock/cli/errors/{code}.md) | {meaning} |")
    head = (
        "# Errors\n\nThis page is written by `python -m penstock.cli.docs --write`. "
        "`penstock explain CODE` prints a page.\n\n| code | meaning |\n|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def main(arguments: list[str]) -> int:
    """The exit code: 0 when the pages are, or now are, up to date."""
    directory = Path(__file__).resolve().parents[3] / "docs"
    stale = [name for name, text in pages().items() if _read(directory / name) != text]
    if "--write" in arguments:
        for name in stale:
            (directory / name).parent.mkdir(exist_ok=True)
            (directory / name).write_text(pages()[name], encoding="utf-8")
        return 0
    for name in stale:
        click.echo(f"docs/{name} is not up to date: python -m penstock.cli.docs --write", err=True)
    return 1 if stale else 0


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
