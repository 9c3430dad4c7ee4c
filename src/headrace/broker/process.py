"""The broker as a process: its event loop, its signals, what it tells its operator and its service manager.

SIGTERM and SIGINT stop it gracefully, and the exit code is 0; a second one ends it at once, as kill -9 would, and the
exit code is the signal's. Nothing is lost either way: the next start recovers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Sequence
from importlib import import_module

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.monitoring.log_format import print_message
from headrace.broker.security.credentials import AddedUser
from headrace.broker.server import Server
from headrace.version import __version__

__all__ = ["RULES", "banner", "event_loop", "load_rules", "notify_service", "run_broker", "serve", "watchdog_seconds"]


logger = logging.getLogger("headrace.broker")

# A segment has up to four files, a connection one; the soft limit of most systems is 1024.
MOST_FILES = 100_000
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's if it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def run_broker(
    configuration: BrokerConfiguration,
    ready_callback: Callable[[Server], None] | None = None,
    *,
    metrics_host: str = "127.0.0.1",
    metrics_port: int | None = None,
    scram_users: Sequence[AddedUser] = (),
) -> None:
    """Run until SIGTERM or SIGINT, then stop gracefully. Raises ConfigError and StateError when it cannot start."""
    server = Server(configuration, metrics_host=metrics_host, metrics_port=metrics_port)
    server.scram_users = scram_users
    with asyncio.Runner(loop_factory=event_loop) as runner:
        runner.run(serve(server, ready_callback))


async def serve(server: Server, ready_callback: Callable[[Server], None] | None) -> None:
    """Run the broker until a signal stops it."""
    _raise_file_limit()
    loop = asyncio.get_running_loop()
    asked_to_stop: asyncio.Future[signal.Signals] = loop.create_future()

    def stop(number: signal.Signals) -> None:
        """Stop gracefully at the first signal; end the process at once at the second, as kill -9 would."""
        for each in _STOP_SIGNALS:
            loop.remove_signal_handler(each)
            signal.signal(each, signal.SIG_DFL)
        if not asked_to_stop.done():
            asked_to_stop.set_result(number)

    # Before the start, which may take long: a stop during recovery ends the process in order, too.
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, stop, number)
    notify_service("STATUS=Reading the logs.")
    await server.start()
    _print_banner(server)
    if ready_callback is not None:
        ready_callback(server)
    # From the loop itself, not from a thread: a loop that is stuck must not feed its watchdog.
    watchdog = loop.create_task(_feed_watchdog())
    rules = loop.create_task(asyncio.to_thread(load_rules))
    try:
        number = await asked_to_stop
        notify_service("STOPPING=1", "STATUS=Writing everything to the disk.")
        logger.info("Stopping after %s; a second signal ends the broker at once.", number.name)
    finally:
        watchdog.cancel()
        await server.stop()
        await rules
        logger.info("Stopped; everything is on the disk.")


def _print_banner(server: Server) -> None:
    configuration = server.configuration
    print_message(
        banner(server),
        address=f"{configuration.host}:{server.port}",
        data_dir=str(configuration.data_dir.resolve()),
        flush_policy=configuration.flush_policy,
        metrics_port=server.metrics_port,
        version=__version__,
    )
    notify_service("READY=1", f"STATUS=Listening on {configuration.host}:{server.port}.")


async def _feed_watchdog() -> None:
    """systemd restarts a unit with WatchdogSec= whose event loop is stuck."""
    interval = watchdog_seconds()
    while interval is not None:
        notify_service("WATCHDOG=1")
        await asyncio.sleep(interval)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files.

    Every open segment and connection is a file; the soft limit (256 on macOS) is meant for other programs.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Not without end: some tools walk all possible descriptors when they fork.
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def banner(server: Server) -> str:
    """Return the banner: what an operator should know before trusting the broker with data."""
    configuration = server.configuration
    promise = {
        "never": "acknowledged records survive kill -9, not a power loss",
        "interval": "acknowledged records survive kill -9, and a power loss but for the last "
        f"{configuration.flush_interval_ms()} ms",
        "always": "acknowledged records survive kill -9 and a power loss",
    }[configuration.flush_policy]
    others = "".join(
        f", {each.name} on {each.configuration.host}:{each.port}"
        for each in tuple(server.listeners.listeners.values())[1:]
    )
    lines = [
        f"Headrace broker on {configuration.host}:{server.port}{others}, data in {configuration.data_dir.resolve()}",
        f"one process, one machine, not replicated; fsync policy {configuration.flush_policy}: {promise}",
    ]
    if server.metrics_port is not None:
        lines.append(f"metrics on http://{server.metrics_host}:{server.metrics_port}/metrics, /health/ready beside it")
    lines += [
        f"warning: {each.host} ({each.name}) is reachable from outside, without TLS and "
        "without authentication: every client that reaches it may read and write everything (docs/how-to/security.md)."
        for each in server.listeners.open_to_the_world()
    ]
    return "\n".join(lines)


RULES = (
    "headrace.coordinator.shard",
    "headrace.broker.coordinators.coordinator_logs",
    "headrace.coordinator.transactions.shard",
    "headrace.storage.log_cleaning",
)


def load_rules() -> None:
    """Import the rules. May run beside the event loop: without import cycles no thread waits for another."""
    for name in RULES:
        import_module(name)


def notify_service(*states: str) -> bool:
    """Send `READY=1`, `STOPPING=1`, `STATUS=…`, `WATCHDOG=1` to systemd. Return whether it listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return False
    if address.startswith("@"):  # Linux's abstract names begin with a zero byte
        address = "\0" + address[1:]
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.connect(address)
        channel.sendall("\n".join(states).encode())
        return True
    return False


def watchdog_seconds() -> float | None:
    """Return the interval of `WATCHDOG=1`: half of systemd's timeout; None without a watchdog."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    given = os.environ.get("WATCHDOG_USEC", "")
    return int(given) / 2e6 if given.isdigit() and int(given) > 0 else None
