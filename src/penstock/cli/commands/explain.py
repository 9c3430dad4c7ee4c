"""`penstock explain CODE`: the page of an error."""

from __future__ import annotations

import click

from penstock.cli.error_pages import error_codes, error_page
from penstock.cli.terminal import data
from penstock.near_names import nearest

__all__ = ["command"]


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """Print the page of an error code: what it means, why it happens, what to do. Without CODE: all codes.

    \b
      penstock explain broker-unreachable
    """
    if code is None:
        for known in error_codes():
            data(known)
        return
    wanted = code.removeprefix("error[").rstrip("]:")
    page = error_page(wanted)
    if page is None:
        near = nearest(wanted, error_codes())
        hint = f" Did you mean {near}?" if near else " All codes: penstock explain"
        raise click.UsageError(f"There is no error code {wanted!r}.{hint}")
    data(page.rstrip())
