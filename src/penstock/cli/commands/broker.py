"""`penstock broker`: the broker as a process of its own, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from penstock.cli.options import key_value_pairs, read_properties

__all__ = ["command"]


@click.command("broker")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where logs and metadata lie; created when missing.",
)
@click.option(
    "--port", type=click.IntRange(0, 65535), help="The port to listen on; 0 takes a free one.  [default: 9092]"
)
@click.option("--host", help="The address to listen on.  [default: 127.0.0.1, loopback only]")
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    help="A server.properties; its names are Apache Kafka's.",
)
@click.option("--override", multiple=True, metavar="NAME=VALUE", help="One setting, over the file's; may be repeated.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve metrics as Prometheus text on http://HOST:PORT/metrics; 0 takes a free port.  [default: not served]",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default="127.0.0.1, loopback only", help="Where --metrics-port listens."
)
@click.option("-v", "--verbose", is_flag=True, help="Log what the broker does.")
def command(
    data_dir: Path | None,
    port: int | None,
    host: str | None,
    config_file: Path | None,
    override: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    verbose: bool,
) -> None:
    """Run the broker: one process on one machine, speaks Kafka's protocol, keeps Kafka's files, not replicated.

    \b
      penstock broker --data-dir ./data --port 9092
    """
    from penstock.broker.configuration import BrokerConfiguration
    from penstock.broker.server import run_broker

    settings: dict[str, object] = dict(read_properties(config_file)) if config_file is not None else {}
    settings.update(key_value_pairs(override, "--override"))
    if data_dir is None and "log.dirs" not in settings:
        raise click.UsageError("Give --data-dir DIR: where the broker keeps its logs.")
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    configuration = BrokerConfiguration.from_settings(data_dir, host=host, port=port, settings=settings)
    run_broker(configuration, metrics_host=metrics_host, metrics_port=metrics_port)
