"""The pages behind `headrace explain`: one Markdown file per error code and per rule of advice, inside the package."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["error_codes", "error_page", "rule_names", "rule_page"]

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
    if name not in _names(directory):
        return None
    return files("headrace.cli").joinpath(*directory, f"{name}.md").read_text(encoding="utf-8")
