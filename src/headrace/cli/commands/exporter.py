"""`headrace exporter`: Prometheus metrics of any Kafka, right for groups of all types."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, command_config_option, open_admin, selection_options
from headrace.cli.terminal import data

if TYPE_CHECKING:
    from headrace.cli.exporter.cluster_snapshot import Selection
    from headrace.client.admin import Admin

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
@selection_options(only_topics="Only topics", not_topics="Not the topics")
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
    selection: Selection,
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
    from headrace.cli.exporter.collector import Collector
    from headrace.cli.exporter.snapshot_loop import in_url, serve_while_collecting
    from headrace.metrics.http_exporter import MetricsPage

    def open_cluster() -> Admin:
        return open_admin(
            bootstrap_servers, client_id="headrace-exporter", timeout_ms=timeout_ms, command_config=command_config
        )

    # A wrong --command-config fails here, at once; the collector opens its own clients.
    open_cluster().close()
    collector = Collector(open_cluster, selection, interval_seconds=interval)
    if once:
        failure = collector.collect()
        collector.close()
        if failure is not None:
            raise failure
        data(collector.page().rstrip("\n"))
        return
    page = MetricsPage(collector.page, host=host, port=port)
    serve_while_collecting(page, collector.run, lambda served: f"Metrics: http://{in_url(host)}:{served.port}/metrics")
