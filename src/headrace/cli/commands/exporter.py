"""`headrace exporter`: Prometheus metrics of any Kafka, right for groups of all types."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import click

from headrace.cli.options import bootstrap_option, command_config_option, open_admin
from headrace.cli.terminal import data

__all__ = ["command"]

DEFAULT_PORT = 9308


@click.command("exporter")
@bootstrap_option
@command_config_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Serve /metrics here; 0 takes a free port.",
)
@click.option("--host", default="127.0.0.1", show_default="127.0.0.1, loopback only", help="Address to listen on.")
@click.option(
    "--interval",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two collections. Scrapes are served from memory.",
)
@click.option("--group-filter", metavar="REGEX", help="Only groups whose whole name matches (RE2 syntax).")
@click.option("--group-exclude", metavar="REGEX", help="Not the groups whose whole name matches.")
@click.option("--topic-filter", metavar="REGEX", help="Only topics whose whole name matches.")
@click.option(
    "--topic-exclude",
    metavar="REGEX",
    default="__consumer_offsets|__transaction_state|__share_group_state",
    show_default=True,
    help="Not the topics whose whole name matches.",
)
@click.option("--max-groups", type=click.IntRange(min=1), default=1_000, show_default=True, help="Groups at most.")
@click.option(
    "--max-partitions", type=click.IntRange(min=1), default=20_000, show_default=True, help="Partitions at most."
)
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=100),
    default=10_000,
    show_default=True,
    metavar="MS",
    help="How long one call to the cluster may take, with its repetitions.",
)
@click.option("--once", is_flag=True, help="Collect once, print the page, and end.")
def command(
    bootstrap_servers: str,
    command_config: Path | None,
    port: int,
    host: str,
    interval: float,
    group_filter: str | None,
    group_exclude: str | None,
    topic_filter: str | None,
    topic_exclude: str,
    max_groups: int,
    max_partitions: int,
    timeout_ms: int,
    once: bool,
) -> None:
    """Serve Prometheus metrics of a Kafka cluster: lag, members, states, epochs and rebalances of groups of all types.

    Works beside any Kafka and needs nothing installed there. Names are kafka_exporter's where it has them
    (docs/reference/exporter-metrics.md). It goes on while brokers restart; headrace_exporter_up reports it.

    \b
      headrace exporter --bootstrap-server kafka:9092
      headrace exporter --group-filter 'orders-.*' --once
    """
    from headrace.cli.exporter.cluster_snapshot import Selection
    from headrace.cli.exporter.collector import Collector
    from headrace.cli.exporter.name_filter import NameFilter
    from headrace.metrics.http_exporter import MetricsPage

    selection = Selection(
        groups=NameFilter(include=group_filter, exclude=group_exclude),
        topics=NameFilter(include=topic_filter, exclude=topic_exclude),
        max_groups=max_groups,
        max_partitions=max_partitions,
    )
    # A wrong --command-config fails here, at once; the collector opens its own clients.
    open_admin(
        bootstrap_servers, client_id="headrace-exporter", timeout_ms=timeout_ms, command_config=command_config
    ).close()
    collector = Collector(
        lambda: open_admin(
            bootstrap_servers, client_id="headrace-exporter", timeout_ms=timeout_ms, command_config=command_config
        ),
        selection,
        interval_seconds=interval,
    )
    if once:
        failure = collector.collect()
        collector.close()
        if failure is not None:
            raise failure
        data(collector.page().rstrip("\n"))
        return
    _log_to_stderr()
    stop = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # A daemon: the process does not wait for a collection from a cluster that does not answer.
    thread = threading.Thread(target=collector.run, args=(stop,), name="headrace-collector", daemon=True)
    try:
        with MetricsPage(collector.page, host=host, port=port) as page:
            data(f"Metrics: http://{_address(host)}:{page.port}/metrics")
            sys.stdout.flush()
            thread.start()
            stop.wait()
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, previous)


def _log_to_stderr() -> None:
    from headrace.broker.monitoring.log_format import log_to

    log_to(sys.stderr, level="info", log_format="text")


def _address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
