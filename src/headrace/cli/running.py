"""A run of `headrace run`: start the instances, show them, obey keys and signals, end them in order."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli.dev_broker import STATE_DIRECTORY, DevBroker, SampleFeed
from headrace.cli.group_table import Row, clock_text, group_line, instance_rows, short_line, table
from headrace.cli.group_view import GroupPoller, GroupView
from headrace.cli.instances import Instance, stop_all
from headrace.cli.terminal import console, echo_err, is_terminal, keys, print_error
from headrace.errors import CannotConnect, HeadraceError
from headrace.temporary_directories import OwnedDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from types import FrameType

    from rich.console import RenderableType

__all__ = ["RunOptions", "names", "run_instances", "terminable"]

DEV_PARTITIONS = 4
"""Partitions of the topics that `--dev` creates, where the program names no number."""
# Twice a second is fast enough for the eye. Each look asks the broker for the group, its offsets and both ends of its
# logs.
LOOK_SECONDS = 0.5
PLAIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The command line of `headrace run`."""

    application: str
    instances: int = 1
    dev: bool = False
    sample: str | None = None
    bootstrap_servers: str | None = None
    until: str = "stopped"
    config_file: Path | None = None

    def arguments(self) -> list[str]:
        """The command line of an instance."""
        # All instances get the same arguments; `Instance` adds the name and the path of the report.
        given = [self.application, "--until", self.until]
        if self.bootstrap_servers is not None:
            given += ["--bootstrap-server", self.bootstrap_servers]
        if self.config_file is not None:
            given += ["--config", str(self.config_file)]
        if self.instances > 1:
            given.append("--own-state-dir")
        if self.dev:
            given += ["--create-topics", str(DEV_PARTITIONS)]
        return given

    def environment(self) -> dict[str, str] | None:
        """The environment of an instance: with `--dev`, all that a run leaves behind lies in `.headrace`."""
        # State and broker of `--dev` belong together: a state directory elsewhere would keep offsets of a broker whose
        # data a user removes with `rm -r .headrace`.
        if not self.dev or "HEADRACE_STATE_DIR" in os.environ:
            return None
        return {**os.environ, "HEADRACE_STATE_DIR": str(STATE_DIRECTORY.absolute())}


def names(count: int) -> list[str]:
    """A, B, C …"""
    return [chr(ord("A") + index) for index in range(count)]


def run_instances(options: RunOptions) -> int:
    """Run until all instances have ended.

    Returns:
        The exit code: 0 when all ended well.

    Raises:
        HeadraceError: of the first instance that failed. The log directory and the development broker stay then.
    """
    with OwnedDirectory("headrace-run-") as directory, contextlib.ExitStack() as stack:
        # 1. SIGTERM from a supervisor takes the same way as Ctrl-C. Installed before anything is started that would
        #    have to be ended.
        stack.enter_context(terminable())
        try:
            # 2. Broker and topics first: an instance that starts without a broker fails, one without its topic waits.
            broker, sample = _prepare(options)
        except KeyboardInterrupt:
            return 0
        environment = options.environment()
        instances = [
            Instance(name, options.arguments(), directory=directory.path, environment=environment)
            for name in names(options.instances)
        ]
        # 3. Run until all instances have ended, by themselves or on request.
        session = _Session(instances, directory.path, sample)
        try:
            _watch(session, instances)
            code = session.outcome()
        except BaseException:
            # 4. After a failure logs and broker stay, for the user who reads the one and repairs the program against
            #    the other.
            directory.keep()  # the error names the logs
            if broker is not None:
                broker.leave_running()
            raise
        finally:
            session.close()
            if sample is not None:
                sample.stop()
        if broker is not None:
            broker.stop()
        return code


def _prepare(options: RunOptions) -> tuple[DevBroker | None, SampleFeed | None]:
    """Start what `--dev` and `--sample` ask for."""
    if not options.dev or options.bootstrap_servers is None:
        return None, None
    broker = DevBroker.open(options.bootstrap_servers)
    if options.sample is None:
        return broker, None
    try:
        # `--until caught-up` ends at the offsets that the topics have when the instances start: a sample that is sent
        # while they run would find them gone.
        at_once = options.until == "caught-up"
        sample = SampleFeed(options.bootstrap_servers, partitions=DEV_PARTITIONS, at_once=at_once)
        sample.create_topic()
        if at_once:
            sample.send_all()
    except BaseException:
        broker.stop()
        raise
    return broker, sample


def _watch(session: _Session, instances: Sequence[Instance]) -> None:
    """Start the instances and show them until all have ended; end them on Ctrl-C, at once on a second one."""
    try:
        for instance in instances:
            instance.start()
        session.watch()
    except KeyboardInterrupt:
        echo_err("Stopping: each instance finishes its micro-batch, commits and leaves. Ctrl-C again kills them.")
    finally:
        try:
            # Also after a normal end, when there is nothing to stop: one instance may have failed while others run.
            stop_all(instances)
        except KeyboardInterrupt:
            for instance in instances:
                instance.kill()


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does."""

    # Raised in the main thread between two bytecodes, as Python does for SIGINT, so that one `except KeyboardInterrupt`
    # serves both.
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Session:
    """Mutable: the screen of one run."""

    def __init__(self, instances: Sequence[Instance], directory: Path, sample: SampleFeed | None) -> None:
        self._instances = instances
        self._sample = sample
        self._directory = directory
        self._began = time.monotonic()
        self._watch: GroupPoller | None = None
        self._view: GroupView | None = None
        self._shown_waits: list[str] = []

    def watch(self) -> None:
        """Return when every instance has ended, or on q."""
        if is_terminal():
            self._watch_live()
        else:
            self._watch_plain()

    def _watch_live(self) -> None:
        from rich.live import Live

        with keys() as pressed, Live(console=console(), auto_refresh=False) as live:
            while self._going():
                live.update(self._render(self._rows()), refresh=True)
                if not self._handle_key(pressed.wait(LOOK_SECONDS)):
                    return

    def _watch_plain(self) -> None:
        said = 0.0
        while self._going():
            rows = self._rows()
            waits = self._waiting_texts()
            if waits != self._shown_waits:
                for text in waits:
                    echo_err(f"Waiting: {text}")
                self._shown_waits = waits
            if time.monotonic() - said >= PLAIN_SECONDS:
                said = time.monotonic()
                state = self._view.state if self._view is not None else "starting"
                echo_err(f"{clock_text(said - self._began)}  {state}: " + " · ".join(short_line(row) for row in rows))
            # Waiting on a process instead of sleeping: the run ends the moment the last instance does.
            self._wait_for_an_end(LOOK_SECONDS)

    def _waiting_texts(self) -> list[str]:
        """Return what the instances wait for, without duplicates."""
        return list(dict.fromkeys(text for instance in self._instances for text in instance.waiting()))

    def _wait_for_an_end(self, seconds: float) -> None:
        running = next((instance for instance in self._instances if instance.alive), None)
        if running is not None:
            running.wait(seconds)

    def _going(self) -> bool:
        return any(instance.alive for instance in self._instances)

    def _rows(self) -> list[Row]:
        self._look()
        return instance_rows(self._view, self._instances)

    def _look(self) -> None:
        if self._watch is None:
            # The group's name and the brokers are known only to the application, so the watch starts when the first
            # instance has reported both. Until then the table shows the processes alone.
            reports = ((i.report(), i.access()) for i in self._instances)
            report, access = next(((r, a) for r, a in reports if "group" in r and a is not None), ({}, None))
            if access is None:
                return
            from headrace.client.admin import Admin

            with contextlib.suppress(CannotConnect):
                servers = report["bootstrap_servers"]
                # 500 ms instead of the default: this runs between two frames of the table, and a broker that is away is
                # tried again at the next look.
                admin = Admin(servers, client_id="headrace-run", bootstrap_timeout_ms=500, security=access)
                self._watch = GroupPoller(admin, report["group"])
        if self._watch is not None:
            # The group may not be there yet, the broker may be restarting: the table goes on with what is known.
            with contextlib.suppress(HeadraceError):
                self._view = self._watch.look(now_ms=int(time.monotonic() * 1000))
                # Records come when tasks have owners, so that the first thing a new user sees is the work being shared,
                # and not one instance that catches up alone while the other starts its Spark.
                if self._sample is not None and self._view.state == "Stable":
                    self._sample.start()

    def _handle_key(self, key: str) -> bool:
        """Handle a key. Return False to end the run."""
        if key == "k":
            # The last one: A, which the user started with, survives until it is alone.
            victim = next((i for i in reversed(self._instances) if i.alive), None)
            if victim is not None:
                victim.kill()
        elif key == "s":
            for instance in self._instances:
                if not instance.alive:
                    instance.start()
        return key != "q"

    def _render(self, rows: Sequence[Row]) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        head = group_line(self._view) if self._view is not None else "Spark is starting"
        why = [
            Text(f"  {label:<6} {text}", style="yellow")
            for o in (self._view.obstacles if self._view else ())
            for label, text in (("why", o.why), ("do", o.do))
        ]
        why += [Text(f"  waits  {text}", style="yellow") for text in self._waiting_texts()]
        failed = [Text(error.render(), style="red") for i in self._instances if (error := i.failure()) is not None]
        hint = Text(
            f"k kills one (SIGKILL)   s starts it again   q stops all      logs: {self._directory}", style="dim"
        )
        return Group(
            Text(f"{head}      {clock_text(time.monotonic() - self._began)}", style="bold"),
            *why,
            table(rows),
            *failed,
            hint,
        )

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def outcome(self) -> int:
        """0, or the first failure raised; further ones are printed."""
        failures = [error for instance in self._instances if (error := instance.failure()) is not None]
        if not failures:
            return 0
        for error in failures[1:]:
            # Instances of one program usually fail for one reason; it is printed once.
            if error.render() != failures[0].render():
                print_error(error)
        raise failures[0]
