"""The pages behind `penstock explain CODE`: one Markdown file per code, inside the package."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["error_codes", "error_page"]


def error_codes() -> list[str]:
    """All codes that have a page, in order."""
    pages = (page.name for page in files("penstock.cli").joinpath("errors").iterdir())
    return sorted(name.removesuffix(".md") for name in pages if name.endswith(".md"))


def error_page(code: str) -> str | None:
    """The page of `code`, None when there is none."""
    if code not in error_codes():
        return None
    return files("penstock.cli").joinpath("errors", f"{code}.md").read_text(encoding="utf-8")
