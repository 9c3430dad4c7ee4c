"""`headrace ui`: a web page of any Kafka, with groups of all types."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, command_config_option, open_admin
from headrace.cli.terminal import data, echo_err
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.client.admin import Admin

__all__ = ["command"]

DEFAULT_PORT = 9310
LOGIN_VARIABLE = "HEADRACE_UI_LOGIN"


@click.command("ui")
@bootstrap_option
@command_config_option
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Serve the page here; 0 takes a free port.",
)
@click.option("--host", default="127.0.0.1", show_default="127.0.0.1, loopback only", help="Address to listen on.")
@click.option(
    "--login-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help=f"A file with user:password; or set {LOGIN_VARIABLE}. Required with --host.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="A name under which browsers reach the page, beside localhost and addresses; may be repeated.",
)
@click.option(
    "--tls-certificate",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Serve HTTPS with this certificate chain (PEM).",
)
@click.option(
    "--tls-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Its private key (PEM), if it is not in the same file.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=1),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two collections. Browsers are served from memory.",
)
@click.option("--group-filter", metavar="REGEX", help="Only groups whose whole name matches (RE2 syntax).")
@click.option("--group-exclude", metavar="REGEX", help="Not the groups whose whole name matches.")
@click.option("--topic-filter", metavar="REGEX", help="Offsets only of topics whose whole name matches.")
@click.option(
    "--topic-exclude",
    metavar="REGEX",
    default="__consumer_offsets|__transaction_state|__share_group_state",
    show_default=True,
    help="No offsets of topics whose whole name matches.",
)
@click.option("--max-groups", type=click.IntRange(min=1), default=1_000, show_default=True, help="Groups at most.")
@click.option(
    "--max-partitions", type=click.IntRange(min=1), default=20_000, show_default=True, help="Partitions at most."
)
@click.option("--no-records", is_flag=True, help="Do not show the records of topics.")
@click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=100),
    default=10_000,
    show_default=True,
    metavar="MS",
    help="How long one call to the cluster may take, with its repetitions.",
)
def command(
    bootstrap_servers: str,
    command_config: Path | None,
    port: int,
    host: str,
    login_file: Path | None,
    allowed_hosts: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    interval: float,
    group_filter: str | None,
    group_exclude: str | None,
    topic_filter: str | None,
    topic_exclude: str,
    max_groups: int,
    max_partitions: int,
    no_records: bool,
    timeout_ms: int,
) -> None:
    """Serve a web page of a Kafka cluster: brokers, topics, and groups of all types with members, tasks and lag.

    Works beside any Kafka and needs nothing installed there. The page only reads. It is served on the loopback; an
    address that others reach needs a login.

    \b
      headrace ui --bootstrap-server kafka:9092
      HEADRACE_UI_LOGIN=ops:… headrace ui --host 0.0.0.0 --allowed-host kafka-ui.example.com
    """
    from headrace.cli.exporter.cluster_snapshot import Selection
    from headrace.cli.exporter.name_filter import NameFilter
    from headrace.cli.ui.access import AccessRules, Login, is_loopback
    from headrace.cli.ui.cluster_watch import ClusterWatch
    from headrace.cli.ui.server import PageServer
    from headrace.cli.ui.web_application import WebPage

    login = None
    if login_file is not None:
        login = Login.parse(_read(login_file), str(login_file))
    elif os.environ.get(LOGIN_VARIABLE):
        login = Login.parse(os.environ[LOGIN_VARIABLE], LOGIN_VARIABLE)
    if tls_key is not None and tls_certificate is None:
        raise click.UsageError("--tls-key goes with --tls-certificate.")
    rules = AccessRules.for_address(host, allowed_hosts=allowed_hosts, login=login)
    selection = Selection(
        groups=NameFilter(include=group_filter, exclude=group_exclude),
        topics=NameFilter(include=topic_filter, exclude=topic_exclude),
        max_groups=max_groups,
        max_partitions=max_partitions,
    )

    def open_cluster() -> Admin:
        return open_admin(
            bootstrap_servers, client_id="headrace-ui", timeout_ms=timeout_ms, command_config=command_config
        )

    # A wrong --command-config fails here, at once; the collector opens its own clients.
    open_cluster().close()
    watch = ClusterWatch(open_cluster, selection, interval_seconds=interval)
    page = WebPage(watch, rules, open_cluster, shows_records=not no_records)
    server = PageServer(page, host=host, port=port, certificate=tls_certificate, key=tls_key)
    _log_to_stderr()
    if not is_loopback(host) and tls_certificate is None:
        echo_err("The login and all data travel unencrypted: set --tls-certificate, or put a proxy with TLS in front.")
    stop = threading.Event()
    # A daemon: the process does not wait for a collection from a cluster that does not answer.
    thread = threading.Thread(target=watch.run, args=(stop,), name="headrace-collector", daemon=True)
    previous = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        with server:
            data(f"Page: {'https' if tls_certificate else 'http'}://{_address(host)}:{server.port}/")
            sys.stdout.flush()
            thread.start()
            stop.wait()
    finally:
        stop.set()
        signal.signal(signal.SIGTERM, previous)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("bad-value", f"{path} cannot be read: {error}", "Name a file with user:password.") from None


def _log_to_stderr() -> None:
    from headrace.broker.monitoring.log_format import log_to

    log_to(sys.stderr, level="info", log_format="text")


def _address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
