"""An application in a process of its own, for benchmarks that look at processes: what it costs, what it holds.

    python benchmarks/measured_application.py BOOTSTRAP DIRECTORY

The session stays; applications come and go in it, one at a time. A line of JSON on standard input, one for an answer:

  {"do": "start", "name": .., "topic": .., "sink": .., "guarantee": .., "settings": {..}}   answered when all tasks run
  {"do": "tasks"}      how many it runs now, and {"keys": .., "bytes": ..} of their state
  {"do": "settle"}     answered when the group has committed what its topics hold now
  {"do": "batches"}    rows of progress since the last time it was asked, at most the last hundred
  {"do": "stop"}

The application counts `groupBy("key")` from topic to topic, values and keys as `json_topic` writes them; with `"way":
"copy"` it copies. `MeasuredApplication` is the side of the benchmark.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
import json_topic as topics
from tests.chaos.soak import ROLES

__all__ = ["PARTS", "WHOLE", "MeasuredApplication", "cpu_by_role", "parts_of", "stage_ms"]

READY_S, SETTLED_S = 180, 900
WHOLE = ("addBatch", "commitOffsets", "triggerExecution")  # of a micro-batch; other durations are a stage's
PARTS = ("fetch", "decode", "aggregate", "state", "produce", "flush", "table")  # of a stage, besides its own name


class MeasuredApplication:
    """Mutable: the process. A context manager; leaving it ends the application and the process."""

    def __init__(self, bootstrap: str, directory: Path, *, master: str = "local[2]") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, bootstrap, str(directory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "MASTER": master},
            )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def ask(self, do: str, **more: Any) -> dict[str, Any]:
        """Raises SystemExit with the log's end when the process has ended."""
        self.tell(do, **more)
        return self.answer()

    def tell(self, do: str, **more: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"the application ended with {self._process.wait()}:\n{self.log.read_text()[-3000:]}")
        found: dict[str, Any] = json.loads(line)
        return found

    def pids(self) -> set[int]:
        return topics.descendants(self.pid)


def cpu_by_role(pids: set[int]) -> dict[str, float]:
    """CPU seconds so far of driver, JVM, Python workers, guardian and replicas."""
    by_role: dict[str, set[int]] = {}
    for pid in pids:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it ended while we looked
            continue
        role = next((role for part, role in ROLES.items() if part in command), "others")
        by_role.setdefault(role, set()).add(pid)
    return {role: topics.cpu_seconds(found) for role, found in sorted(by_role.items())}


def stage_ms(row: dict[str, Any]) -> float:
    """Milliseconds that the slots of a micro-batch's stages worked, each stage by its slowest slot."""
    return float(sum(ms for name, ms in row["durationMs"].items() if name not in WHOLE + PARTS))


def parts_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Shares of the time of these micro-batches: parts of stages (slowest slots), commit, and the rest, which is the
    driver's and Spark's own: planning, scheduling, waiting for the slower slot.
    """
    spent = {name: float(sum(row["durationMs"].get(name, 0) for row in rows)) for name in PARTS}
    whole = float(sum(row["durationMs"]["triggerExecution"] for row in rows)) or 1.0
    spent["commit"] = float(sum(row["durationMs"]["commitOffsets"] for row in rows))
    spent["rest"] = max(0.0, whole - sum(spent.values()))
    shares = {name: round(ms / whole, 2) for name, ms in spent.items() if ms}
    return dict(sorted(shares.items(), key=lambda share: -share[1]))


class Application:
    """In the process itself. Mutable: what runs now."""

    def __init__(self, bootstrap: str, directory: str) -> None:
        self._bootstrap, self._directory = bootstrap, Path(directory)
        self._running: Any = None
        self._seen: dict[str, int] = {}

    def start(self, asked: dict[str, Any]) -> dict[str, Any]:
        from headrace.spark.streams_app import StreamsApp

        app = StreamsApp(
            asked["name"],
            bootstrap_servers=self._bootstrap,
            state_dir=self._directory / asked["name"],
            processing_guarantee=asked["guarantee"],
            config=asked.get("settings", {}),
        )
        if asked.get("way") == "copy":
            app.stream(asked["topic"]).to_topic(asked["sink"], value="raw")
        else:
            rows = app.stream(asked["topic"], schema="key string, n bigint", key="key")
            rows.groupBy("key").count().to_topic(asked["sink"])
        started = time.perf_counter()
        self._running, self._seen = app.start(), {}
        if not asked.get("shared"):  # else it may be that another instance has all tasks for a while
            self._running.wait_until("running", timeout=READY_S)
        return {"seconds": round(time.perf_counter() - started, 2)}

    def tasks(self, _asked: dict[str, Any]) -> dict[str, Any]:
        found = self._running.tasks
        return {
            "tasks": len(found),
            "keys": sum(task.state_keys for task in found),
            "bytes": sum(task.state_bytes for task in found),
        }

    def settle(self, _asked: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        self._running.wait_until("caught-up", timeout=SETTLED_S)
        return {"seconds": time.perf_counter() - started}

    def batches(self, _asked: dict[str, Any]) -> dict[str, Any]:
        kept = ("subtopology", "numInputRows", "durationMs", "tasks")
        rows = [r for r in self._running.recentProgress if r["batchId"] > self._seen.get(r["subtopology"], -1)]
        for row in rows:
            self._seen[row["subtopology"]] = row["batchId"]
        return {"batches": [{name: row[name] for name in kept} for row in rows]}

    def stop(self, _asked: dict[str, Any]) -> dict[str, Any]:
        if self._running is not None:
            self._running.stop()
            self._running = None
        return {}


def main(bootstrap: str, directory: str) -> None:
    # The JVM inherits standard output: its chatter goes to standard error, answers alone to the benchmark.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    application = Application(bootstrap, directory)
    while line := sys.stdin.readline():
        asked = json.loads(line)
        print(json.dumps(getattr(application, asked["do"])(asked)), file=answers)
    application.stop({})


if __name__ == "__main__":
    main(*sys.argv[1:])
