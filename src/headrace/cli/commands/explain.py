"""`headrace explain CODE`: the page of an error code, or of a rule of `headrace advise`.

Pages are Markdown files inside the package, one per code and per rule; the documentation contains the same files.
"""

from __future__ import annotations

from importlib.resources import files

import click

from headrace.cli.terminal import data
from headrace.suggestions import nearest

__all__ = ["command", "error_codes", "error_page", "rule_names", "rule_page"]


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
    # People copy the first line of an error, `error[broker-unreachable]: …`, with its brackets.
    wanted = code.removeprefix("error[").rstrip("]:")
    page = error_page(wanted) or rule_page(wanted)
    if page is None:
        near = nearest(wanted, (*error_codes(), *rule_names()))
        hint = f" Did you mean {near}?" if near else " All codes: headrace explain"
        raise click.UsageError(f"There is no error code or rule {wanted!r}.{hint}")
    data(page.rstrip())


_ERRORS, _RULES = ("errors",), ("advice", "pages")


def error_codes() -> list[str]:
    """All codes that have a page, in order."""
    return _names(_ERRORS)


def error_page(code: str) -> str | None:
    """The page of `code`, None when there is none."""
    return _page(_ERRORS, code)


def rule_names() -> list[str]:
    """All rules of `headrace advise` that have a page, in order."""
    return _names(_RULES)


def rule_page(name: str) -> str | None:
    """The page of the rule `name`, None when there is none."""
    return _page(_RULES, name)


def _names(directory: tuple[str, ...]) -> list[str]:
    pages = (page.name for page in files("headrace.cli").joinpath(*directory).iterdir())
    return sorted(name.removesuffix(".md") for name in pages if name.endswith(".md"))


def _page(directory: tuple[str, ...], name: str) -> str | None:
    # Looked up in the list instead of opened by its name: `explain ../../x` must not print a file elsewhere.
    if name not in _names(directory):
        return None
    return files("headrace.cli").joinpath(*directory, f"{name}.md").read_text(encoding="utf-8")
