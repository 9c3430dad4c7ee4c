"""`headrace recorder`: the history of groups beside any Kafka, as a broker of this project records it by itself."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, command_config_option, open_admin
from headrace.cli.terminal import echo_err
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.cli.recorder.agent import GroupHistoryAgent
    from headrace.client.admin import Admin

__all__ = ["command"]

RETRY_SECONDS = 5.0


@click.command("recorder")
@bootstrap_option
@command_config_option
@click.option(
    "--records",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Entries that are kept for each group.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks at the cluster.",
)
def command(bootstrap_servers: str, command_config: Path | None, records: int, interval: float) -> None:
    """Record the history of groups in the topic __headrace_group_history, which headrace doctor reads.

    Follows __consumer_offsets of any Kafka: who joined and left, generations and epochs, changed subscriptions, which
    partitions stood still for how long, rates before and after. Run one per cluster. A broker of Headrace records more
    by itself: set headrace.group.history.records there instead.

    \b
      headrace recorder --bootstrap-server kafka:9092
    """
    from headrace.cli.recorder.agent import GroupHistoryAgent

    def open_cluster() -> Admin:
        return open_admin(bootstrap_servers, client_id="headrace-recorder", command_config=command_config)

    agent = GroupHistoryAgent(records_per_group=records)
    # A refusal at the start has a reason that the user can change: access rules, a wrong address.
    with open_cluster() as admin:
        agent.record(admin, _now_ms())
    echo_err(f"Recording the groups of {bootstrap_servers}; Ctrl-C ends it.")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    while not stop.is_set():
        _record_until_failure(agent, open_cluster, interval, stop)


def _record_until_failure(
    agent: GroupHistoryAgent, open_cluster: Callable[[], Admin], interval: float, stop: threading.Event
) -> None:
    try:
        with open_cluster() as admin:
            while not stop.wait(interval):
                agent.record(admin, _now_ms())
            # Records since the last look.
            agent.record(admin, _now_ms())
    except HeadraceError as error:
        if stop.is_set():
            return
        echo_err(f"Recording failed ({error}); retrying in {RETRY_SECONDS:.0f} s.")
        stop.wait(RETRY_SECONDS)


def _now_ms() -> int:
    return int(time.time() * 1000)
