"""`headrace broker`: the broker as a process of its own, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.broker.monitoring.log_format import LEVELS, LogFormat, log_to
from headrace.child_process import ChildProcess, python_module
from headrace.cli.options import key_value_pairs, read_properties
from headrace.cli.terminal import data
from headrace.extras import require_extra

if TYPE_CHECKING:
    from headrace.broker.config.broker_configuration import BrokerConfiguration
    from headrace.broker.server import Server

__all__ = ["command"]

logger = logging.getLogger("headrace.broker")

PAGE_ENDS_WITHIN_S = 5.0


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
    "--ui-port",
    type=click.IntRange(0, 65535),
    help="Serve the web page of `headrace ui` on http://127.0.0.1:PORT, from a process of its own; 0 takes a free "
    "port.  [default: not served]",
)
@click.option(
    "--ui-command-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="How the page logs in to a broker whose first listener has TLS or a login.",
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
    ui_port: int | None,
    ui_command_config: Path | None,
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
    with contextlib.ExitStack() as stack:
        page = None if ui_port is None else _Page(configuration, ui_port, ui_command_config)
        if page is not None:
            stack.callback(page.close)
        run_broker(
            configuration,
            None if page is None else page.open,
            metrics_host=metrics_host,
            metrics_port=metrics_port,
            scram_users=added,
        )


class _Page:
    """`headrace ui` of this broker, in a process of its own: it takes no time from the broker's event loop. Mutable.

    It ends with the broker, whatever ends that: its stdin is a pipe that this process holds.
    """

    def __init__(self, configuration: BrokerConfiguration, port: int, command_config: Path | None) -> None:
        """Start nothing yet. Raises ConfigError if the page's packages are missing, or it could not log in."""
        require_extra("ui")
        listener = configuration.listeners()[0]
        if listener.protocol != "PLAINTEXT" and command_config is None:
            raise click.UsageError(
                f"--ui-port: the listener {listener.name} is {listener.protocol}. Name the settings with which the "
                "page connects: --ui-command-config FILE."
            )
        self._host, self._port, self._command_config = listener.host, port, command_config
        self._process: ChildProcess | None = None

    def open(self, server: Server) -> None:
        """Start the process."""
        from headrace.broker.network.listener import EVERYWHERE
        from headrace.cli.exporter.snapshot_loop import in_url

        host = "127.0.0.1" if self._host in ("", *EVERYWHERE) else self._host
        options = [
            "--bootstrap-server",
            f"{in_url(host)}:{server.port}",
            "--port",
            str(self._port),
            "--ends-with-stdin",
        ]
        if self._command_config is not None:
            options += ["--command-config", str(self._command_config)]
        self._process = ChildProcess(python_module("headrace.cli.main", "ui", *options))
        self._process.listen(_log_line, _log_end, thread_name="headrace-ui")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.end_input()
            self._process.wait(PAGE_ENDS_WITHIN_S)
            self._process.close()


def _log_line(line: bytes) -> None:
    logger.info("%s", line.decode(errors="replace"))


def _log_end(exit_code: int) -> None:
    if exit_code:
        logger.warning("The web page is not served any more: its process ended with exit code %d.", exit_code)


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
