"""Processes that the command line starts: application instances and a broker. Started, watched, killed, cleaned up.

Each runs in a session of its own, so that Ctrl-C reaches only us and we end them in order. An instance holds one end of
a socket as its standard input: should we die without a word, it stops by itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.child_process import python_module
from headrace.errors import CannotConnect, HeadraceError

__all__ = ["BrokerProcess", "Instance", "InstanceStatus", "answers", "free_port", "last_line", "stop_all"]

# A stop waits for the micro-batch under way, whose length is up to the application; after this time processes are
# killed, which costs a repetition of the batch and no data.
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceStatus:
    """The last `status.json` of an instance; empty values before the first one."""

    state: str = "starting"
    member_id: str | None = None
    tasks: dict[str, list[int]] = field(default_factory=dict)
    opening: int = 0
    records: int = 0
    records_per_s: float | None = None
    lag: int | None = None
    batch_ms: int | None = None
    state_bytes: int | None = None
    error: str = ""

    @property
    def task_count(self) -> int:
        return sum(len(partitions) for partitions in self.tasks.values())


class Instance:
    """One application instance. Mutable: it may be started again after it ended."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        directory: Path,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.started_at = 0.0
        self.killed = False
        self.asked_to_stop = False
        self.log = log or directory / f"{name}.log"
        self._report = directory / f"{name}.report.json"
        self._arguments = list(arguments)
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: socket.socket | None = None
        self._heard = b""

    def start(self) -> None:
        # 1. Traces of an earlier run would be read as this one's: `failure` would report its error. `status.json`
        #    stays, since the instance itself owns it; `status` ignores what is older than `started_at`.
        self._report.unlink(missing_ok=True)
        self.killed = self.asked_to_stop = False
        self.started_at = time.time()
        command = python_module("headrace.cli.instance", *self._arguments)
        command += ["--name", self.name, "--report", str(self._report)]
        self._close_lifeline()
        self._lifeline, other_end = socket.socketpair()
        self._lifeline.setblocking(False)
        # 3. A session of its own: a Ctrl-C in the terminal goes to the foreground process group, and children in it
        #    would stop at once, in any order, while we still print what happens.
        with self.log.open("ab") as log, other_end:
            self._process = subprocess.Popen(
                command, stdin=other_end.fileno(), stdout=log, stderr=log, start_new_session=True, env=self._environment
            )

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code; None while it runs, or before it was started."""
        return None if self._process is None else self._process.poll()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL to the driver, no goodbye; its guardian ends the rest."""
        if self._process is not None:
            self.killed = True
            self._process.kill()
            self._process.wait()
            self._close_lifeline()

    def terminate(self) -> None:
        """Ask it to stop: finish the micro-batch, commit, leave."""
        if self.alive and self._process is not None:
            self.asked_to_stop = True
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended in time."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        self._close_lifeline()
        return True

    def report(self) -> dict[str, Any]:
        """Return the instance's report: `group`, `state_dir`, `bootstrap_servers`; `error` and `code` if it failed."""
        return _read_json(self._report)

    def access(self) -> dict[str, str] | None:
        """Return the connection settings of the instance, with their secrets; None until it has sent them."""
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                # One line of JSON over a non-blocking socket: what has arrived is kept until the line is whole, and
                # BlockingIOError (an OSError) means "not yet". A file or an environment variable would show secrets to
                # other processes.
                while not self._heard.endswith(b"\n") and (more := self._lifeline.recv(65_536)):
                    self._heard += more
        return json.loads(self._heard) if self._heard.endswith(b"\n") else None

    def status(self) -> InstanceStatus:
        report = self.report()
        found = _read_json(Path(report["state_dir"]) / "status.json") if "state_dir" in report else {}
        # `status.json` outlives its process. Without this test a table would show the tasks of the instance that was
        # killed until its successor writes for the first time.
        if found.get("time", 0.0) < self.started_at:  # of an earlier run
            return InstanceStatus(error=str(report.get("error", "")))
        lag = found.get("lag") or {}
        error = found.get("error") or {}
        return InstanceStatus(
            state=str(found.get("state", "starting")),
            member_id=found.get("member_id"),
            tasks=found.get("tasks") or {},
            opening=sum(len(partitions) for partitions in (found.get("opening") or {}).values()),
            records=sum((found.get("records") or {}).values()),
            records_per_s=found.get("records_per_second"),
            lag=sum(lag.values()) if lag else None,
            batch_ms=found.get("batch_ms"),
            state_bytes=found.get("state_bytes"),
            error=str(error.get("message", "") or report.get("error", "")),
        )

    def waiting(self) -> list[str]:
        """Return what the instance waits for before it starts: missing source topics, each with its fix."""
        return [str(text) for text in self.report().get("waiting", ())] if self.alive else []

    def failure(self) -> HeadraceError | None:
        """Why it ended by itself with a failure; None when it runs, was killed by us or ended well."""
        if self.killed or self.exit_code in (None, 0):
            return None
        # The graceful stop is installed when the application starts; before that SIGTERM has its default effect.
        if self.asked_to_stop and self.exit_code == -signal.SIGTERM:
            return None  # it was loading the program: nothing had begun
        report = self.report()
        text = str(report.get("error", ""))
        if text:
            return _read_error(
                text, str(report.get("code", "unexpected")), connection=report.get("kind") == "no-connection"
            )
        if report.get("missing"):
            # Raised here although the import failed in the child: `main` turns it into the error with the pip command.
            raise ModuleNotFoundError(f"No module named {report['missing']!r}", name=str(report["missing"]))
        what = report.get("text") or f"ended with exit code {self.exit_code}"
        return HeadraceError(
            "instance-failed",
            f"instance {self.name} {what}",
            f"its log tells more: {self.log}",
            why=last_line(self.log),
        )

    def _close_lifeline(self) -> None:
        if self._lifeline is not None:
            with contextlib.suppress(OSError):
                self._lifeline.close()
            self._lifeline = None
            self._heard = b""


class BrokerProcess:
    """`headrace broker` as a child."""

    def __init__(self, data_dir: Path, host: str, port: int, *, log: Path, settings: Sequence[str] = ()) -> None:
        self.data_dir, self.host, self.port, self.log = data_dir, host, port, log
        self._settings = [part for setting in settings for part in ("--override", setting)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = 30.0) -> None:
        """Return when it answers. Raises HeadraceError with what the broker said when it does not."""
        command = python_module("headrace.cli.main", "broker", "--data-dir", str(self.data_dir))
        command += ["--host", self.host, "--port", str(self.port), *self._settings]
        # The log may be shared (the demo has one for all processes): the broker's own words begin here.
        before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        deadline = time.monotonic() + timeout_s
        # A TCP connection is enough as a sign of readiness: the port listens before the logs are loaded, and requests
        # that come in the meantime wait in its backlog until `Listeners.open`.
        while not answers(self.host, self.port):
            if not self.alive or time.monotonic() > deadline:
                said = self.log.read_bytes()[before:].decode("utf-8", "replace").strip()
                self.stop()
                # A broker that ended by an error has printed it in the form of `print_error`: the user gets that error
                # instead of "did not start".
                if said.startswith("error["):
                    raise _read_error(said, said[6 : said.index("]")])
                raise HeadraceError(
                    "broker-not-started", f"the broker at {self.address} did not start", f"its log: {self.log}"
                )
            time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None and self.alive:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def stop_all(instances: Sequence[Instance], timeout_s: float = STOP_SECONDS) -> None:
    """Ask all to stop at once, wait, and kill those that do not. Nothing of them is left afterwards."""
    # Signals first, waits afterwards: instances stop in parallel, and the deadline holds for all of them together.
    for instance in instances:
        instance.terminate()
    deadline = time.monotonic() + timeout_s
    for instance in instances:
        if not instance.wait(max(0.1, deadline - time.monotonic())):
            # The session, not the process: the driver's JVM and Python workers would outlive it and keep ports and
            # stores locked. Each instance is started in a session of its own.
            _kill_session(instance.pid)
            instance.wait(5)


def free_port(host: str) -> int:
    """A port that was free a moment ago."""
    # Another process may take the port before it is used. The broker then fails with "port taken" instead of hanging;
    # port 0 is no alternative, because callers need the address before the broker listens.
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def answers(host: str, port: int) -> bool:
    """Whether a process listens there."""
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def last_line(path: Path) -> str:
    """The last line of a log, for an error's `why`."""
    try:
        lines = path.read_text("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip()[:300] if lines else ""


def _kill_session(pid: int | None) -> None:
    if pid is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # its own session: only its own processes


def _read_error(rendered: str, code: str, *, connection: bool = False) -> HeadraceError:
    """Return the error that a child rendered as text."""
    lines = rendered.splitlines()
    # The inverse of `HeadraceError.render`: a first line `error[code]: message`, then labelled lines. Text is enough as
    # a format because parent and child are the same version.
    facts = {
        line.split(maxsplit=1)[0]: line.split(maxsplit=1)[1]
        for line in lines[1:]
        if line.split(maxsplit=1)[0] in ("where", "why", "fix") and " " in line
    }
    fix = facts.pop("fix", "")
    message = lines[0].partition("]: ")[2] or lines[0]
    kind = CannotConnect if connection else HeadraceError
    return kind(code, message, fix, **facts)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
