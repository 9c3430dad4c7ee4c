"""Record the pictures in docs/pictures: `python -m docs.recordings [NAME …]`, all of them without a name."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from docs.recordings.diagrams import DIAGRAMS
from docs.recordings.notebook_picture import executed_page, photograph
from docs.recordings.terminal_session import Key, Pause, Type, WaitFor, record, sped_up
from docs.recordings.terminal_svg import animation
from docs.recordings.web_page import photograph_pages

from headrace import EmbeddedBroker

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
CTRL_C = "\x03"
PROMPT = r"\$ *$"


def record_application() -> None:
    """`python flights.py`, the README's program, from its start to Ctrl-C, while records arrive."""
    with _workplace() as (directory, environment), EmbeddedBroker({"flights": 4}) as broker, _arriving_flights(broker):
        recording = record(
            [
                Type("python flights.py"),
                WaitFor(r"records/s|in all", 120),
                Pause(12),
                Key(CTRL_C),
                WaitFor(r"(?i)stopped", 60),
                Pause(1.5),
            ],
            cwd=directory,
            columns=122,
            rows=20,
            environment=environment | {"HEADRACE_BOOTSTRAP_SERVERS": broker.bootstrap_servers},
        )
    _write("application.svg", animation(recording, "python flights.py"))


def record_demo() -> None:
    """`headrace demo --fast`: two instances, a kill, the verdict."""
    with _workplace() as (directory, environment):
        recording = record(
            [Type("headrace demo --fast"), WaitFor(r"\$ *$", 900), Pause(1.5)],
            cwd=directory,
            columns=124,
            rows=28,
            environment=environment,
        )
    _write("demo.svg", animation(sped_up(recording, speed=6, shortest_s=0.3), "headrace demo"))


def record_notebook() -> None:
    """The example notebook while its application runs: from the start to the verdict."""
    page = executed_page(ROOT / "examples" / "flight_delays.ipynb", first=9, last=16)
    PICTURES.mkdir(exist_ok=True)
    photograph(page, PICTURES / "notebook.png", height=1760)
    print(PICTURES / "notebook.png")


def record_web_page() -> None:
    """The web page of a cluster: groups, and a streams group on a desktop and a phone."""
    PICTURES.mkdir(exist_ok=True)
    for path in photograph_pages(PICTURES):
        print(path)


def record_diagrams() -> None:
    """The diagrams of docs/explanation/how-it-works.md."""
    for name, draw in DIAGRAMS.items():
        _write(f"{name}.svg", draw().svg())


RECORDINGS: dict[str, Callable[[], None]] = {
    "application": record_application,
    "demo": record_demo,
    "notebook": record_notebook,
    "web-page": record_web_page,
    "diagrams": record_diagrams,
}


@contextlib.contextmanager
def _workplace() -> Iterator[tuple[Path, dict[str, str]]]:
    """A directory with the README's program; with the variables, `python` and `headrace` are this environment's."""
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "flights.py").write_text(program)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        yield directory, {"PATH": path, "HEADRACE_STATE_DIR": str(directory / "state"), "PYTHONDONTWRITEBYTECODE": ""}


@contextlib.contextmanager
def _arriving_flights(broker: EmbeddedBroker) -> Iterator[None]:
    """Some hundred flights every second, until the block is left."""
    chance = random.Random(7)
    ended = threading.Event()

    def produce() -> None:
        while not ended.wait(0.5):
            flights = [
                json.dumps({"origin": chance.choice(["EWR", "JFK", "LGA"]), "dep_delay": chance.randrange(-10, 60)})
                for _ in range(chance.randrange(200, 400))
            ]
            broker.produce("flights", [flight.encode() for flight in flights])

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _write(name: str, text: str) -> None:
    PICTURES.mkdir(exist_ok=True)
    (PICTURES / name).write_text(text)
    print(PICTURES / name)


def main(names: list[str]) -> int:
    """Make the recordings of these names; return the exit code."""
    unknown = set(names) - set(RECORDINGS)
    if unknown:
        print(f"Unknown recordings {', '.join(sorted(unknown))}; there are {', '.join(RECORDINGS)}.", file=sys.stderr)
        return 2
    for name in names or RECORDINGS:
        RECORDINGS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
