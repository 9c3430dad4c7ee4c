"""Transcripts: text files of commands and expected output, in the manner of etcd/raft's datadriven tests.

A transcript is a sequence of blocks with an empty line between them. A block is a command with its output:

    # Comments stay as they are.
    join m1 instance=a
    ----
    reply   epoch 2

A block of comments alone is a heading. Intended changes are written by `pytest … --rewrite`, and reviewed as a diff.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Command", "check_transcript", "play_transcript"]

SEPARATOR = "----"


@dataclass(frozen=True, slots=True)
class Command:
    """One command: `verb word … name=value …`."""

    verb: str
    words: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, line: str) -> Command:
        """Split a line at spaces."""
        verb, *rest = line.split()
        options = {name: value for name, sign, value in (each.partition("=") for each in rest) if sign}
        return cls(verb, tuple(each for each in rest if "=" not in each), options)

    def word(self, index: int) -> str:
        """Return a required word; fail the test if the transcript lacks it."""
        assert index < len(self.words), f"`{self.verb}` needs {index + 1} words, got {list(self.words)}"
        return self.words[index]


def play_transcript(text: str, run: Callable[[Command], list[str]]) -> str:
    """Return the transcript with the output that its commands have now; comments and commands stay.

    Args:
        text: The transcript.
        run: Executes a command and returns the lines of its output; none are shown as `nothing`.
    """
    blocks: list[str] = []
    for block in text.strip().split("\n\n"):
        head = block.partition(f"\n{SEPARATOR}")[0]
        commands = [line for line in head.splitlines() if not line.startswith("#")]
        assert len(commands) <= 1, f"an empty line is missing between commands: {commands}"
        if commands:
            head = "\n".join([head, SEPARATOR, *(run(Command.parse(commands[0])) or ["nothing"])])
        blocks.append(head)
    return "\n\n".join(blocks) + "\n"


def check_transcript(path: Path, run: Callable[[Command], list[str]], *, rewrite: bool) -> None:
    """Fail if a command's output is not the one in the file; with `rewrite`, write the new one instead."""
    text = path.read_text()
    now = play_transcript(text, run)
    if rewrite:
        path.write_text(now)
    else:
        assert now == text, f"{path} is out of date: add --rewrite and review the difference"
