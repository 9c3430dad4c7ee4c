"""Recording of a terminal session: a shell in a pseudo-terminal, keys that are typed, and the screens in between."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyte

__all__ = ["Key", "Line", "Pause", "Recording", "Screen", "Type", "WaitFor", "record", "screen_of", "sped_up"]

TYPING_INTERVAL_S = 0.04
FRAME_INTERVAL_S = 0.08
"""Changes within this time are one frame: programs redraw a screen in several writes."""
INTERRUPT = "\x03"
COMMAND_START_TIMEOUT_S = 10.0
COMMAND_EXEC_S = 0.2
"""Time for a command that has the terminal to replace the shell's signal handlers by its own."""


@dataclass(frozen=True, slots=True)
class Run:
    """Characters of one line that look the same."""

    column: int
    text: str
    colour: str
    background: str
    bold: bool


Line = tuple[Run, ...]
Screen = tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Recording:
    """Screens with the seconds since the start at which each appeared."""

    columns: int
    rows: int
    screens: Sequence[tuple[float, Screen]]
    seconds: float


def sped_up(recording: Recording, speed: float, shortest_s: float) -> Recording:
    """Return the recording played `speed` times as fast, without the screens that would be shown for less than
    `shortest_s`; the last screen stays.
    """
    screens: list[tuple[float, Screen]] = []
    for at, screen in recording.screens:
        shown_at = at / speed
        if screens and shown_at - screens[-1][0] < shortest_s:
            screens[-1] = (screens[-1][0], screen)
        else:
            screens.append((shown_at, screen))
    return Recording(recording.columns, recording.rows, screens, recording.seconds / speed)


@dataclass(frozen=True, slots=True)
class Type:
    """A command line, typed key by key and ended with Enter."""

    text: str


@dataclass(frozen=True, slots=True)
class Key:
    """One key, such as Ctrl-C (`"\\x03"`)."""

    key: str


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Wait until `pattern` is on the screen; it has to appear within `timeout_s`."""

    pattern: str
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Pause:
    """Leave the screen alone, so that a reader can follow."""

    seconds: float


Step = Type | Key | WaitFor | Pause


def record(
    steps: Sequence[Step],
    *,
    cwd: Path,
    columns: int = 100,
    rows: int = 28,
    environment: Mapping[str, str] | None = None,
) -> Recording:
    """Run an interactive shell in `cwd`, carry out the steps, and return what its terminal showed.

    Raises TimeoutError, with the screen, when a pattern does not appear.
    """
    session = _Session(cwd, columns, rows, dict(environment or {}))
    try:
        session.follow(0.3)
        for step in steps:
            session.carry_out(step)
        return session.recording()
    finally:
        session.close()


def screen_of(text: str, *, columns: int = 100) -> Screen:
    """Return the screen that shows `text`, which a program printed, with as many rows as it needs."""
    rows = sum(max(1, -(-len(line) // columns)) for line in text.rstrip("\n").splitlines())
    screen = pyte.Screen(columns, rows)
    pyte.Stream(screen).feed(text.rstrip("\n").replace("\n", "\r\n"))
    return _picture(screen)


def _own_terminal() -> None:
    """Let Ctrl-C reach the session: a controlling terminal, and SIGINT as a shell expects it.

    A background job of a non-interactive shell, as in CI, inherits an ignored SIGINT.
    """
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class _Session:
    def __init__(self, cwd: Path, columns: int, rows: int, environment: dict[str, str]) -> None:
        self._columns, self._rows = columns, rows
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._screens: list[tuple[float, Screen]] = []
        self._terminal, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        given = {"PS1": "$ ", "TERM": "xterm-256color", "COLORTERM": "truecolor", "HISTFILE": "/dev/null"}
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=cwd,
            env=os.environ | given | environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(theirs)
        self._started = time.monotonic()

    def carry_out(self, step: Step) -> None:
        match step:
            case Type(text):
                for key in text:
                    self._press(key)
                    self.follow(TYPING_INTERVAL_S)
                self._press("\r")
            case Key(key):
                if key == INTERRUPT:
                    self._wait_for_foreground_command()
                self._press(key)
            case Pause(seconds):
                self.follow(seconds)
            case WaitFor(pattern, timeout_s):
                self._wait_for(re.compile(pattern), timeout_s)

    def follow(self, seconds: float) -> None:
        """Feed the output of the next `seconds` to the screen and keep the screens that differ."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            ready, _, _ = select.select([self._terminal], [], [], min(left, FRAME_INTERVAL_S))
            if ready:
                self._stream.feed(os.read(self._terminal, 65536))
                continue
            self._keep()
        self._keep()

    def recording(self) -> Recording:
        first = self._screens[0][0]
        screens = [(at - first, screen) for at, screen in self._screens]
        return Recording(self._columns, self._rows, screens, time.monotonic() - self._started - first)

    def close(self) -> None:
        os.killpg(self._shell.pid, signal.SIGHUP)
        os.close(self._terminal)
        try:
            self._shell.wait(10)
        except subprocess.TimeoutExpired:
            self._shell.kill()
            self._shell.wait()

    def _wait_for_foreground_command(self) -> None:
        """Wait until the terminal belongs to a command.

        The shell echoes a line before it starts the command; an interrupt in between reaches the shell alone, and the
        command runs on.
        """
        deadline = time.monotonic() + COMMAND_START_TIMEOUT_S
        while os.tcgetpgrp(self._terminal) == self._shell.pid and time.monotonic() < deadline:
            self.follow(FRAME_INTERVAL_S)
        self.follow(COMMAND_EXEC_S)

    def _press(self, key: str) -> None:
        os.write(self._terminal, key.encode())

    def _wait_for(self, pattern: re.Pattern[str], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not pattern.search("\n".join(self._screen.display)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{pattern.pattern!r} did not appear:\n" + "\n".join(self._screen.display))
            self.follow(0.1)

    def _keep(self) -> None:
        picture = _picture(self._screen)
        if not self._screens or self._screens[-1][1] != picture:
            self._screens.append((time.monotonic() - self._started, picture))


def _picture(screen: pyte.Screen) -> Screen:
    lines = []
    for row in range(screen.lines):
        cells = screen.buffer[row]
        runs: list[Run] = []
        for column in range(screen.columns):
            cell = cells[column]
            colour, background = (cell.bg, cell.fg) if cell.reverse else (cell.fg, cell.bg)
            if cell.reverse:
                colour = "background" if colour == "default" else colour
                background = "foreground" if background == "default" else background
            run = Run(column, cell.data, colour, background, cell.bold)
            if runs and _looks_like(runs[-1], run) and runs[-1].column + len(runs[-1].text) == column:
                run = Run(runs[-1].column, runs.pop().text + run.text, colour, background, cell.bold)
            runs.append(run)
        lines.append(tuple(_trimmed(runs)))
    return tuple(lines)


def _looks_like(one: Run, other: Run) -> bool:
    return (one.colour, one.background, one.bold) == (other.colour, other.background, other.bold)


def _trimmed(runs: list[Run]) -> list[Run]:
    """Without blank runs, and without blanks at the end of the line."""
    shown = [run for run in runs if run.text.strip() or run.background != "default"]
    if shown and shown[-1].background == "default":
        last = shown.pop()
        shown.append(Run(last.column, last.text.rstrip(), last.colour, last.background, last.bold))
    return shown
