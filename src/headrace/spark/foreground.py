"""`StreamsApp.run`: an application in the foreground of a process, until a signal arrives or it has caught up.

The start, missing topics, assignments, a progress line every few seconds, and the end with its reason are logged at
INFO and above. `application_log` sends these records to stderr.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Literal, Self

from headrace.errors import BrokerError, CannotConnect, HeadraceError
from headrace.spark.application_log import log_to_stderr
from headrace.spark.progress_text import ProgressText, total_line
from headrace.spark.restore_progress import RestoreProgress
from headrace.spark.runtime.user_topics import missing_sources
from headrace.version import __version__

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration
    from headrace.spark.running_app import RunningApp

__all__ = ["WaitingListener", "run_in_foreground"]

log = logging.getLogger("headrace.spark")

WaitingListener = Callable[[Sequence[BrokerError]], None]
"""Called with the `topic-missing` error of each missing source topic, and with an empty sequence once all exist."""

_LOOK_S = 0.2  # a signal's handler runs only between waits of the main thread
_TOPIC_LOOK_S = 0.5
_REMINDER_S = 60.0


class _StopRequested(BaseException):
    """A signal arrived before the application was running.

    A BaseException: no `except Exception` between the start and `run` may handle it as a failure.
    """


def run_in_foreground(
    app: ApplicationDeclaration,
    until: Literal["stopped", "caught-up"],
    *,
    start: Callable[[], RunningApp],
    on_waiting: WaitingListener | None = None,
) -> None:
    """Start and wait. SIGTERM and SIGINT stop gracefully: finish the micro-batch, commit, leave, return."""
    began_s = time.monotonic()
    with log_to_stderr(), _StopSignals() as signals:
        _log_start(app)
        try:
            with signals.interrupting():
                _await_sources(app, on_waiting or _ignore)
                running = start()
        except (Exception, _StopRequested) as error:
            # Any error counts as the stop that was asked for. Where it hits a call of Py4J, whose connection is out of
            # step then, PySpark's own `finally` fails, and its error takes the place of _StopRequested.
            if signals.asked.is_set():
                log.info("%s stopped by %s before it had any task.", app.name, signals.name)
                log.debug("The interrupted start ended with %r.", error)
                return
            if isinstance(error, HeadraceError):
                log.error("%s did not start: %s", app.name, error)
            raise
        try:
            ended = _wait(running, until, signals)
            log.info("%s stops (%s): it finishes its micro-batch, commits and leaves the group.", app.name, ended)
        finally:
            running.stop()
        _log_end(running, began_s)
    running.awaitTermination()  # raises what ended it, if anything did


def _log_start(app: ApplicationDeclaration) -> None:
    context = app.spark.sparkContext
    log.info("Headrace %s with Spark %s on %s.", __version__, context.version, context.master)
    log.info(
        "Starting %s: group %s on %s, %s, state in %s.",
        *(app.name, app.name, app.bootstrap_servers, app.processing_guarantee, app.state_dir),
    )


def _log_end(running: RunningApp, began_s: float) -> None:
    told = total_line(running.progress_sample(), began_s)
    error = running.exception()
    if error is None:
        log.info("%s stopped: %s.", running.name, told)
    else:
        fix = f" Fix: {error.fix}" if error.fix else ""
        log.error("%s failed [%s]: %s%s (%s)", running.name, error.code, error.message, fix, told)


def _ignore(_missing: Sequence[BrokerError]) -> None:
    pass


def _await_sources(app: ApplicationDeclaration, on_waiting: WaitingListener) -> None:
    """Wait until all source topics exist. Raises errors that waiting cannot resolve."""
    compiled = app.compile()
    shown: list[str] = []
    shown_s = 0.0
    with app.network_client(f"{app.name}-topics") as client:
        missing = missing_sources(client, compiled)
        while missing:
            names = [str(error.facts["topic"]) for error in missing]
            now_s = time.monotonic()
            if names != shown or now_s - shown_s > _REMINDER_S:
                for error in missing:
                    log.warning("Waiting for topic %s: %s. Fix: %s", error.facts["topic"], error.message, error.fix)
                on_waiting(missing)
                shown, shown_s = names, now_s
            time.sleep(_TOPIC_LOOK_S)
            try:
                missing = missing_sources(client, compiled)
            except CannotConnect as error:
                log.warning("%s; trying again", error)
        if shown:
            log.info("Found topic %s.", ", ".join(shown))
            on_waiting([])


def _wait(running: RunningApp, until: str, signals: _StopSignals) -> str:
    """Wait for the end, reporting progress. Returns its reason."""
    caught_up = threading.Event()
    if until == "caught-up":
        threading.Thread(
            target=_wait_for_ends, args=(running, caught_up), name="headrace-caught-up", daemon=True
        ).start()
    text = ProgressText(time.monotonic())
    bar = RestoreProgress(running)
    try:
        while True:
            if signals.asked.is_set():
                return signals.name
            if caught_up.is_set():
                return "caught up"
            if not running.isActive:
                return "ended by itself"
            # Python runs a signal's handler in the main thread, between bytecodes: a wait without limit inside of a
            # lock would delay it.
            running.awaitTermination(_LOOK_S)
            for level, line in text.lines(running.progress_sample()):
                log.log(level, "%s", line)
            bar.look()
    finally:
        bar.close()


def _wait_for_ends(running: RunningApp, caught_up: threading.Event) -> None:
    # Raises when the application ends first; the main thread sees that by itself.
    with contextlib.suppress(HeadraceError, TimeoutError):
        running.wait_until("caught-up")
        caught_up.set()


class _StopSignals:
    """Handlers of SIGTERM and SIGINT during the block.

    A signal is recorded, and raised as _StopRequested inside `interrupting`. While an application starts there is no
    micro-batch to finish: partial start-up is undone by the same code paths as after a failure, and the guardian ends
    what it was asked to watch.
    """

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.name = ""
        self._interrupts = False
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # elsewhere, RunningApp.stop ends the application
            self._before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        """Raise _StopRequested inside the block as soon as a signal arrives."""
        self._interrupts = True
        try:
            if self.asked.is_set():
                raise _StopRequested
            yield
        finally:
            self._interrupts = False

    def _ask(self, number: int, _frame: FrameType | None) -> None:
        self.name = signal.Signals(number).name
        self.asked.set()
        # Raised only while the application starts. Later the main thread sees the event within `_LOOK_S`, and the
        # micro-batch is finished.
        if self._interrupts:
            self._interrupts = False  # once: a second one must not hit the release
            raise _StopRequested
