"""Somebody else's consumer in a process of its own, to be killed: prints its partitions whenever they change.

`python -m tests.interop.foreign_program CLIENT SERVERS GROUP TOPIC PROTOCOL STRATEGY`; `ForeignProcess` runs it.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any, Self

__all__ = ["ForeignProcess"]

SESSION_MS = 3_000


class ForeignProcess:
    """A context manager; `assigned` as the others have it. Left, it is killed."""

    def __init__(self, client_name: str, servers: str, group: str, topic: str, *, protocol: str, strategy: str) -> None:
        self.assigned: set[tuple[str, int]] = set()
        command = [sys.executable, "-m", "tests.interop.foreign_program", client_name, servers, group, topic]
        self.process = subprocess.Popen(
            [*command, protocol, strategy],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._listener.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._listener.join(60)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            parts = (each.rpartition("-") for each in line.split())
            self.assigned = {(topic, int(number)) for topic, _, number in parts}


def main() -> None:
    warnings.simplefilter("ignore")
    from tests.interop.foreign_consumers import FOREIGN

    client_name, servers, group, topic, protocol, strategy = sys.argv[1:]
    told: set[tuple[str, int]] = set()
    settings: dict[str, Any] = {"protocol": protocol, "strategy": strategy, "session_ms": SESSION_MS}
    with FOREIGN[client_name](servers, group, topic, **settings) as consumer:
        while not consumer.errors:
            if consumer.assigned != told:
                told = set(consumer.assigned)
                print(*(f"{name}-{number}" for name, number in sorted(told)), flush=True)
            time.sleep(0.05)


if __name__ == "__main__":
    main()
