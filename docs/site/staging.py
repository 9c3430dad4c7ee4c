"""Preparation of the pages for the site generator.

The pages are written to be read in the repository, too: their links are relative paths of the repository, and their
anchors are GitHub's. The generator sees a copy in which

1. links to other pages of the site lead to the place of the page in the site,
2. links to other files (sources, tests, examples) lead to the repository's address,
3. each heading has GitHub's anchor, because the generator's own rule for anchors differs from it.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Callable
from os.path import normpath, relpath
from pathlib import Path

__all__ = ["ROOT", "heading_anchor", "page_text", "site_pages", "stage"]

ROOT = Path(__file__).parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Source"]

_FENCE = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) (.+?)[ \t]*$", re.MULTILINE)
_TOOLS = ("docs/recordings/", "docs/site/")
_ROOT_PAGES = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "SECURITY.md": "internals/security-policy.md",
    "CHANGELOG.md": "internals/changelog.md",
    "benchmarks/README.md": "lab/benchmark-scripts.md",
}


def site_pages() -> dict[str, str]:
    """Return path in the repository → path in the site, for each page and picture."""
    pages = dict(_ROOT_PAGES)
    for path in sorted((ROOT / "docs").rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and "__pycache__" not in name and not name.startswith(_TOOLS):
            pages[name] = name.removeprefix("docs/")
    for path in sorted((ROOT / "src/headrace/cli/errors").glob("*.md")):
        pages[path.relative_to(ROOT).as_posix()] = f"reference/errors/{path.name}"
    return pages


def stage(directory: Path) -> None:
    """Write the pages and pictures of the site below `directory`, which is emptied first."""
    shutil.rmtree(directory, ignore_errors=True)
    pages = site_pages()
    for source, target in pages.items():
        staged = directory / target
        staged.parent.mkdir(parents=True, exist_ok=True)
        if source.endswith(".md"):
            staged.write_text(page_text((ROOT / source).read_text(), source, pages))
        else:
            shutil.copyfile(ROOT / source, staged)


def page_text(text: str, source: str, pages: dict[str, str]) -> str:
    """Return the Markdown of one page as the generator needs it.

    Args:
        text: The page as it stands in the repository.
        source: Its path in the repository.
        pages: Path in the repository → path in the site, as `site_pages` returns it.

    Raises:
        ValueError: A link leads to a file that does not exist.
    """
    used: set[str] = set()
    return _outside_fences(text, lambda part: _HEADING.sub(_with_anchor(used), _links(part, source, pages)))


def heading_anchor(heading: str, used: set[str]) -> str:
    """Return GitHub's anchor of a heading and add it to `used`, the anchors of the page so far."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    plain = anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
    number = 0
    while anchor in used:
        number += 1
        anchor = f"{plain}-{number}"
    used.add(anchor)
    return anchor


def _outside_fences(text: str, change: Callable[[str], str]) -> str:
    parts = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts += [change(text[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, change(text[end:])])


def _with_anchor(used: set[str]) -> Callable[[re.Match[str]], str]:
    def heading(found: re.Match[str]) -> str:
        return f"{found[1]} {found[2]} {{ #{heading_anchor(found[2], used)} }}"

    return heading


def _links(text: str, source: str, pages: dict[str, str]) -> str:
    def link(found: re.Match[str]) -> str:
        path, hash_sign, anchor = found[2].partition("#")
        if not path or path.startswith(("http:", "https:", "mailto:")):
            return found[0]
        target = normpath((Path(source).parent / path).as_posix())
        if not (ROOT / target).exists():
            raise ValueError(f"{source}: the link to {found[2]} leads to no file of the repository.")
        if target in pages:
            address = relpath(pages[target], Path(pages[source]).parent)
        else:
            address = f"{REPOSITORY}/{'tree' if (ROOT / target).is_dir() else 'blob'}/main/{target}"
        return f"{found[1]}{address}{hash_sign}{anchor})"

    return _LINK.sub(link, text)
