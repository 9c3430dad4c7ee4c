"""The pages of the project, and what they contain that can be checked: commands, inline code, links."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PAGES", "ROOT", "Quotation", "command_lines", "fences", "inline_code", "prose", "words_of"]

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "benchmarks/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "src/headrace/cli/errors").glob("*.md")),
]
_SHELL = ("", "sh", "bash", "console", "text", "yaml", "dockerfile")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Quotation:
    """Something that a page shows as code."""

    page: Path
    text: str
    fenced: bool

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}: {self.text}"


def fences(page: Path, *languages: str) -> list[str]:
    """The fenced blocks in one of these languages; the empty language is a block without one."""
    return [found["body"] for found in _FENCE.finditer(page.read_text()) if found["language"] in languages]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def command_lines(program: str) -> Iterator[Quotation]:
    """Every command line of every page that calls `program`, from behind the program's name.

    In a block a line begins with the program, with a prompt or variables before it or a path in front of it, or the
    program reads from a pipe. Prose of `--help` that happens to begin with the program's name is indented by less than
    the examples.
    """
    begin = r"^(?: {4,}|\$ )?(?:\w+=\S* )*"
    in_block = re.compile(rf"(?:{begin}|[|;(] ?|&& ?|'eval \"\$\()(?:[\w./]*/)?{program}(?: (?P<arguments>.*)|$)")
    inline = re.compile(rf"^(?:\w+=\S* )*(?:[\w./]*/)?{program} (?P<arguments>.*)")
    for page in PAGES:
        blocks = re.sub(r" *\\\n\s*", " ", "\n".join(fences(page, *_SHELL)))
        for line in blocks.splitlines():
            for found in in_block.finditer(line):
                yield Quotation(page, found["arguments"] or "", fenced=True)
        for code in inline_code(page):
            called = inline.search(code)
            if called is not None:
                yield Quotation(page, called["arguments"], fenced=False)


def words_of(arguments: str) -> list[str]:
    """The words of a shell's command line, up to the next command or redirection."""
    lexer = shlex.shlex(arguments, posix=True, punctuation_chars="|;&<>()")
    lexer.whitespace_split = True
    words = []
    for word in lexer:
        if word[0] in "|;&<>()":
            break
        words.append(word)
    return words
