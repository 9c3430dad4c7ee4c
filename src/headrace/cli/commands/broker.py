"""`headrace broker`: the broker as a process of its own, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from headrace.broker.monitoring.log_format import LEVELS, LogFormat, log_to
from headrace.cli.options import key_value_pairs, read_properties
from headrace.cli.terminal import data

__all__ = ["command"]

logger = logging.getLogger("headrace.broker")


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
    "configs",
    multiple=True,
    metavar="FILE|NAME=VALUE",
    help="A server.properties, or one setting; may be repeated. Names are Apache Kafka's. A single setting "
    "overrides the file's value, an option of this command overrides both.",
)
@click.option("--override", multiple=True, metavar="NAME=VALUE", help="One setting, as --config NAME=VALUE.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics (Prometheus), /health/live and /health/ready on http://HOST:PORT; 0 takes a free port.  "
    "[default: not served]",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default="127.0.0.1, loopback only", help="Where --metrics-port listens."
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Log lines for people, or one JSON document per line.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="The least that is logged; debug has a line for every request.",
)
@click.option(
    "--add-scram",
    "scram_users",
    multiple=True,
    metavar="USER",
    help="A user who may log in by SCRAM, as kafka-storage takes it: SCRAM-SHA-512=[name=admin,password=…]; or @FILE "
    "with one on each line, which ps does not show.",
)
@click.option("--print-config", is_flag=True, help="Print all settings as they would be in force, and end.")
def command(
    data_dir: Path | None,
    port: int | None,
    host: str | None,
    configs: tuple[str, ...],
    override: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    log_format: LogFormat,
    log_level: str,
    scram_users: tuple[str, ...],
    print_config: bool,
) -> None:
    """Run the broker: one process on one machine, speaks Kafka's protocol, keeps Kafka's files, not replicated.

    \b
      headrace broker --data-dir ./data --port 9092
    """
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.broker.config.server_properties import as_properties, read_server_properties
    from headrace.broker.process import run_broker
    from headrace.broker.security.secured_listener import parse_added_user

    # 1. The log first: notices about the files below are logged.
    log_to(sys.stderr, level=log_level, log_format=log_format)
    settings: dict[str, object] = {}
    # 2. Settings in the order of their precedence: files, then single settings, then --override. A file whose name
    #    contains `=` is recognised because it exists.
    files = [text for text in configs if "=" not in text or Path(text).is_file()]
    for file in files:
        found = read_server_properties(read_properties(Path(file)))
        settings.update(found.settings)
        for notice in found.notices:
            logger.warning("%s: %s", file, notice)
    settings.update(key_value_pairs((text for text in configs if text not in files), "--config"))
    settings.update(key_value_pairs(override, "--override"))
    # 3. No default directory: a broker that silently starts on an empty one looks like lost data.
    if data_dir is None and "log.dirs" not in settings:
        raise click.UsageError("Give --data-dir DIR: where the broker keeps its logs.")
    configuration = BrokerConfiguration.from_settings(data_dir, host=host, port=port, settings=settings)
    if print_config:
        data(as_properties(configuration).rstrip())
        return
    # 4. Users for SCRAM are given before the first start, as with kafka-storage (KIP-900): with authentication on every
    #    listener no client could create the first one.
    added = [parse_added_user(line) for text in scram_users for line in _users(text)]
    run_broker(configuration, metrics_host=metrics_host, metrics_port=metrics_port, scram_users=added)


def _users(text: str) -> list[str]:
    # A password in the arguments is visible to every user of the host in ps; a file is not.
    if not text.startswith("@"):
        return [text]
    path = Path(text[1:])
    try:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except OSError as error:
        raise click.UsageError(
            f"--add-scram: {path} cannot be read: {(error.strerror or str(error)).lower()}."
        ) from None
