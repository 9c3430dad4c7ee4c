"""A broker, instances of one application and a producer, all processes, and somebody who starts again what has ended.

`World.mend` is called again and again: it does what is due (resume, restart), starts instances that ended, and notes
each end that nobody caused. Nothing here decides anything by chance; that is `disasters`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from tests.chaos.evidence import evidence_of
from tests.chaos.patience import Patience, ShareOfACore, Signs, phase_of
from tests.harness.brokers import RunningBroker
from tests.spark.application.processes import Application, Feed, descendants, group, still_alive

from headrace.client.admin import Admin
from headrace.client.process_tree import ProcessEntry
from headrace.errors import HeadraceError

__all__ = ["GROUP", "Broker", "Instance", "World", "roles_of"]

GROUP = "chaos"
PROGRAM = Path(__file__).with_name("chaos_app.py")
STOP_WITHIN_S = 300.0
DELIVERY_S = 600.0  # of a flight: a broker that is down, and a slow start of one, do not end the run
LOOK_S = 2.0
LAST_LINES = 12  # of a log, in a finding
RESTART_AFTER_S = 0.5
NO_BROKER_S = 15.0  # a start looks for a broker for 5 s, and says so when it finds time to
TRACES = {"PYTHONFAULTHANDLER": "1"}  # SIGABRT writes the stacks of a stuck process into its log
ROLES = {  # what stands in a command line, and who that is; the first that fits
    "org.apache.spark.deploy.SparkSubmit": "jvm",
    "headrace.client.guardian": "guardian",
    "headrace.spark.runtime.stores.replica_process": "replicas",
    "headrace.spark.runtime.daemon": "workers",
    "_app.py": "driver",
    "headrace.cli.main": "broker",
}


class Broker(RunningBroker, Protocol):
    """Ours or Apache Kafka: a process that can die and come back on its port and directory."""

    @property
    def pid(self) -> int: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self) -> None: ...


def roles_of(entries: Iterable[ProcessEntry]) -> dict[str, list[ProcessEntry]]:
    """Processes by what they are: driver, guardian, jvm, replicas, workers (the daemon first), broker."""
    found: dict[str, list[ProcessEntry]] = {}
    for entry in entries:
        with contextlib.suppress(OSError):  # it ended while we looked
            command = Path(f"/proc/{entry.pid}/cmdline").read_bytes().decode(errors="replace")
            role = next((role for part, role in ROLES.items() if part in command), None)
            if role is not None:
                found.setdefault(role, []).append(entry)
    return found


@dataclass(slots=True)
class Instance:
    """Mutable: one instance and what is expected of it."""

    name: str
    application: Application
    may_end: str = ""  # why its end is nobody's fault; empty: it must not end
    stop_by: float = 0.0  # when a stop that was asked for must be over
    restarts: bool = False  # a start is due
    ends: list[str] = field(default_factory=list)

    @property
    def runs(self) -> bool:
        return self.application.process is not None and self.application.process.poll() is None

    @property
    def is_at_work(self) -> bool:
        """Whether this life of it, not the one before, has tasks open."""
        status = self.application.status if self.runs else {}
        return status.get("pid") == self.application.pid and self.application.open_tasks > 0 if status else False

    def family(self) -> dict[str, list[ProcessEntry]]:
        return roles_of(descendants(self.application.pid)) if self.runs else {}


class World:
    """Mutable. `journal`: what happened, line by line, with seconds since the start."""

    def __init__(
        self,
        broker: RunningBroker,
        directory: Path,
        *,
        instances: int,
        feed_per_second: int,
        are_static: bool = False,
        environment: Mapping[str, str] | None = None,
        program: Path = PROGRAM,
        names: Sequence[str] = "abcdefgh",
        began: float | None = None,
    ) -> None:
        """`began`: when time begins in the journal, as `time.monotonic`."""
        self.broker, self.directory = broker, directory
        self.nodes: Sequence[Broker] = getattr(broker, "brokers", None) or [cast("Broker", broker)]
        self.instances = [
            Instance(
                name,
                Application(
                    str(program), broker.bootstrap_servers, directory / name, **env, **TRACES, **(environment or {})
                ),
            )
            for name, env in ((n, {"INSTANCE_ID": f"pod-{n}"} if are_static else {}) for n in names[:instances])
        ]
        self.feed = Feed(broker.bootstrap_servers, 4, delivery_s=DELIVERY_S)
        self._feed_per_second = feed_per_second
        self.failures: list[str] = []
        self.began = time.monotonic() if began is None else began
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._seen: dict[tuple[int, str], ProcessEntry] = {}
        self._looked = 0.0
        self._batches: dict[tuple[int, str], tuple[int, int]] = {}  # by process and subtopology: all, of resident slots
        self.takeovers = 0  # tasks that went on from a copy, a standby's or one made for a move
        self._copies: dict[int, set[tuple[str, int]]] = {}  # by process
        self.broker_is_up = True
        self._broker_was_away = -NO_BROKER_S  # when that was last seen
        self.longest_rest = 0.0  # seconds without a commit of anybody
        self._progress = (0, time.monotonic())
        self._journal = (directory / "journal.log").open("a", buffering=1)

    # -- beginning and end --------------------------------------------------------------------------------------------

    def start(self) -> None:
        with Admin(self.broker.bootstrap_servers) as admin:
            admin.create_topics({"flights": 4}, replication_factor=1)
        for instance in self.instances:
            instance.application.start()
        self.await_tasks()
        self.feed.run(self._feed_per_second)
        self._progress = (0, time.monotonic())

    def close(self) -> None:
        """Nothing stays."""
        with contextlib.suppress(AssertionError):
            self.feed.stop()
        for instance in self.instances:
            instance.application.end()
        for entry in still_alive(self._seen.values()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(entry.pid, signal.SIGKILL)
        self._journal.close()

    def note(self, text: str) -> None:
        line = f"[{time.monotonic() - self.began:7.1f} s] {text}"
        self._journal.write(line + "\n")
        print(line, flush=True)

    def fail(self, text: str) -> None:
        self.note(f"FINDING: {text}")
        self.failures.append(text)

    # -- again and again ----------------------------------------------------------------------------------------------

    def later(self, delay_s: float, work: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + delay_s, work))

    def mend(self) -> None:
        now = time.monotonic()
        ready = [work for when, work in self._due if when <= now]
        self._due = [(when, work) for when, work in self._due if when > now]
        was_up = self.broker_is_up
        for work in ready:
            work()  # a broker that starts may take a while: whoever died meanwhile is looked at below
        if not (was_up and self.broker_is_up):
            self._broker_was_away = time.monotonic()
        for instance in self.instances:
            self._look_after(instance)
        if now - self._looked > 1:
            self._looked = now
            for instance in self.instances:
                if instance.runs:
                    found = descendants(instance.application.pid)
                    self._seen |= {(entry.pid, entry.started): entry for entry in found}
                    self._count_batches(instance)

    def _look_after(self, instance: Instance) -> None:
        if instance.runs:
            if instance.stop_by and time.monotonic() > instance.stop_by:
                self.fail(f"{instance.name} does not stop within {STOP_WITHIN_S:.0f} s")
                instance.stop_by, instance.may_end = 0.0, "killed at last"
                instance.application.kill()
            return
        if instance.restarts:
            return
        assert instance.application.process is not None
        code = instance.application.process.returncode
        said = [line for line in instance.application.log.read_text(errors="replace").splitlines() if line]
        if not instance.may_end and self._found_no_broker(instance, said):
            instance.may_end = "no broker at its start"
        instance.ends.append(f"{instance.may_end or 'by itself'}: {code}")
        if not instance.may_end:
            self.fail(f"{instance.name} ended by itself with {code}: {' | '.join(said[-LAST_LINES:])}")
        elif instance.may_end == "SIGTERM" and code not in (0, -signal.SIGTERM):
            self.fail(f"{instance.name} ended with {code} after SIGTERM")
        instance.restarts = True
        self.later(RESTART_AFTER_S, lambda: self._restart(instance))

    def _count_batches(self, instance: Instance) -> None:
        """Note the micro-batches of an instance by its status file, which a kill leaves up to a second behind."""
        status = instance.application.status
        resident = status.get("resident_batches", {})
        for name, count in status.get("batches", {}).items():
            self._batches[status["pid"], name] = count, resident[name]
        self._count_takeovers(status)

    def _count_takeovers(self, status: Mapping[str, Any]) -> None:
        """Note the tasks that an instance runs and had a copy of until they were opened."""

        def tasks(kind: str) -> set[tuple[str, int]]:
            return {(name, int(p)) for name, partitions in status.get(kind, {}).items() for p in partitions}

        copies = self._copies.get(status.get("pid", 0), set())
        self.takeovers += len(copies & tasks("tasks"))
        self._copies[status.get("pid", 0)] = copies & tasks("opening") | tasks("standby")

    def micro_batches(self) -> dict[str, tuple[int, int]]:
        """Return the micro-batches that were seen, by subtopology: all, and those of resident slots."""
        found: dict[str, tuple[int, int]] = {}
        for (_, name), (count, resident) in sorted(self._batches.items(), key=lambda pair: pair[0][1]):
            before = found.get(name, (0, 0))
            found[name] = before[0] + count, before[1] + resident
        return found

    def _found_no_broker(self, instance: Instance, said: list[str]) -> bool:
        """A start without a broker is an error that a supervisor answers with another start. Only before it joined."""
        assert instance.application.process is not None
        has_run = instance.application.status.get("pid") == instance.application.pid
        was_away = time.monotonic() - self._broker_was_away < NO_BROKER_S
        code = instance.application.process.returncode
        # The error's own line, in front of the notes with its code, its reason and its fix.
        return code == 1 and was_away and not has_run and any("CannotConnect:" in line for line in said[-4:])

    def _restart(self, instance: Instance) -> None:
        instance.restarts, instance.may_end, instance.stop_by = False, "", 0.0
        instance.application.start()
        self.note(f"{instance.name} starts again ({instance.ends[-1]})")

    def rest(self, seconds: float) -> None:
        """Wait, mending."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.mend()
            time.sleep(0.05)

    def wait_for(self, condition: Callable[[], bool], what: str, instances: Sequence[Instance] | None = None) -> bool:
        """Return whether it came true, which may take as long as something moves; not to come true is a failure.

        `instances`: those whose progress counts; None: all of the world.
        """
        watched = self.instances if instances is None else instances
        patience, looked = Patience(ShareOfACore(lambda: _pids_of(watched))), 0.0
        while True:
            self.mend()
            with contextlib.suppress(HeadraceError):
                if condition():
                    return True
            if time.monotonic() - looked > LOOK_S:
                looked = time.monotonic()
                if stuck := patience.look(self._signs(watched)):
                    waited = time.monotonic() - patience.began
                    self.fail(f"not {what} after {waited:.0f} s, {stuck}{self._evidence(watched)}")
                    return False
            time.sleep(0.1)

    def _signs(self, instances: Sequence[Instance]) -> Signs:
        commits = None
        with contextlib.suppress(HeadraceError):
            commits = self.committed()
        return Signs(commits=commits, phases=tuple(phase_of(i.application.status) for i in instances if i.runs))

    def _evidence(self, instances: Sequence[Instance]) -> str:
        """Write down everything about a stuck group, and return the short form. Ends the instances: see `evidence`."""
        place = self.directory / f"stuck-{len(self.failures)}.txt"
        families = {i.name: (i.application, i.family()) for i in instances if i.runs}
        for instance in instances:
            instance.may_end = instance.may_end or "ended to see where it stood"
        short, whole = evidence_of(self.broker.bootstrap_servers, GROUP, families)
        place.write_text(whole)
        return f"\n{short}\n(all of it: {place}, stacks: the logs)"

    def stop(self, instance: Instance) -> int | None:
        """SIGTERM; the exit code, or None if it did not end within `STOP_WITHIN_S`, which is a failure."""
        if not instance.runs:
            return None
        try:
            return instance.application.stop(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.fail(f"{instance.name} does not stop within {STOP_WITHIN_S:.0f} s{self._evidence([instance])}")
            return None

    # -- how far the group is -----------------------------------------------------------------------------------------

    def committed(self) -> int:
        """Sum of the group's committed offsets. Raises HeadraceError."""
        with Admin(self.broker.bootstrap_servers, bootstrap_timeout_ms=1000, api_timeout_ms=3000) as admin:
            at = sum(admin.committed_offsets(GROUP).values())
        now = time.monotonic()
        if at != self._progress[0]:
            self.longest_rest = max(self.longest_rest, now - self._progress[1])
            self._progress = (at, now)
        return at

    def await_tasks(self) -> bool:
        """Every instance has tasks, and has opened them."""
        return self.wait_for(lambda: all(i.is_at_work for i in self.instances), "tasks for everybody")

    def await_work(self, offsets: int) -> bool:
        """The group commits so many offsets more."""
        known: list[int] = []

        def moved() -> bool:
            if not self.broker_is_up:
                return False
            known.append(self.committed())
            return known[-1] >= known[0] + offsets

        return self.wait_for(moved, f"{offsets} offsets further")

    def members(self) -> int:
        with Admin(self.broker.bootstrap_servers, bootstrap_timeout_ms=1000) as admin:
            found = group(admin, GROUP)
        return len(found.members) if found is not None else 0


def _pids_of(instances: Iterable[Instance]) -> list[int]:
    return [entry.pid for i in instances if i.runs for entry in descendants(i.application.pid)]
