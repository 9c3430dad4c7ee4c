"""`headrace explain CODE`: the page of an error, or of a rule of `headrace advise`."""

from __future__ import annotations

import click

from headrace.cli.error_pages import error_codes, error_page, rule_names, rule_page
from headrace.cli.terminal import data
from headrace.near_names import nearest

__all__ = ["command"]


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """Print the page of an error code: what it means, why it happens, what to do. Without CODE: all codes.

    CODE may also be a rule that `headrace advise` names.

    \b
      headrace explain broker-unreachable
      headrace explain session-timeout
    """
    if code is None:
        for known in (*error_codes(), *rule_names()):
            data(known)
        return
    wanted = code.removeprefix("error[").rstrip("]:")
    page = error_page(wanted) or rule_page(wanted)
    if page is None:
        near = nearest(wanted, (*error_codes(), *rule_names()))
        hint = f" Did you mean {near}?" if near else " All codes: headrace explain"
        raise click.UsageError(f"There is no error code or rule {wanted!r}.{hint}")
    data(page.rstrip())
