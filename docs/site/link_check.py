"""Checks of the built site: every link and anchor leads somewhere, and a page loads nothing from another host."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["site_errors"]

_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
_LOADING_RELATIONS = {"stylesheet", "preload", "modulepreload", "icon", "preconnect", "dns-prefetch", "manifest"}


@dataclass
class _Page(HTMLParser):
    """Links, anchors and loaded files of one page."""

    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" and _LOADING_RELATIONS & set(given.get("rel", "").split()):
            self.loaded.append(given.get("href", ""))
        elif tag in _LOADING and _LOADING[tag] in given:
            self.loaded.append(given[_LOADING[tag]])


def site_errors(directory: Path) -> list[str]:
    """Return one sentence for each broken link and each file that a page loads from another host."""
    pages = {path: _parsed(path) for path in sorted(directory.rglob("*.html"))}
    errors = []
    for path, page in pages.items():
        name = path.relative_to(directory)
        for link in page.loaded:
            if _is_remote(link):
                errors.append(f"{name} loads {link} from another host.")
            elif not _target(path, link, directory).exists():
                errors.append(f"{name} loads {link}, which does not exist.")
        errors += [f"{name}: {error}" for link in page.links if (error := _broken(path, link, pages, directory))]
    for style in sorted(directory.rglob("*.css")):
        if "url(http" in style.read_text() or "@import" in style.read_text():
            errors.append(f"{style.relative_to(directory)} loads a file from another host.")
    return errors


def _parsed(path: Path) -> _Page:
    page = _Page()
    page.feed(path.read_text())
    return page


def _is_remote(link: str) -> bool:
    return bool(urlsplit(link).netloc)


def _target(page: Path, link: str, directory: Path) -> Path:
    path = unquote(urlsplit(link).path)
    target = directory / path.lstrip("/") if path.startswith("/") else page.parent / path
    return (target / "index.html" if target.is_dir() else target).resolve() if path else page


def _broken(page: Path, link: str, pages: dict[Path, _Page], directory: Path) -> str | None:
    """Return why `link` leads nowhere, or None."""
    if _is_remote(link) or urlsplit(link).scheme in ("mailto", "javascript", "data"):
        return None
    target = _target(page, link, directory)
    if not target.exists():
        return f"the link to {link} leads to no file."
    anchor = unquote(urlsplit(link).fragment)
    if anchor and target in pages and anchor not in pages[target].anchors and anchor != "__top":
        return f"the link to {link} leads to no anchor."
    return None
