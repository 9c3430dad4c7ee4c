"""`headrace ui`: a web page of any Kafka, with groups of all types."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import bootstrap_option, client_settings, command_config_option, open_admin, selection_options
from headrace.cli.terminal import echo_err
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.cli.exporter.cluster_snapshot import Selection
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
    "--cluster-login",
    is_flag=True,
    help="Users log in with their own user and password of the cluster (SASL), and see what these may see.",
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
@selection_options(only_topics="Offsets only of topics", not_topics="No offsets of topics")
@click.option("--no-records", is_flag=True, help="Do not show the records of topics.")
@click.option(
    "--application-host",
    "application_hosts",
    multiple=True,
    metavar="HOST",
    help="Ask applications on this host, address or network (10.0.0.0/16) for their internals, beside those of the "
    "loopback; may be repeated.",
)
@click.option(
    "--application-token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The token of the applications: their headrace.state.query.token.file.",
)
@click.option("--ends-with-stdin", is_flag=True, hidden=True, help="End when stdin ends: the broker's own page.")
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
    cluster_login: bool,
    allowed_hosts: tuple[str, ...],
    tls_certificate: Path | None,
    tls_key: Path | None,
    interval: float,
    selection: Selection,
    no_records: bool,
    application_hosts: tuple[str, ...],
    application_token_file: Path | None,
    ends_with_stdin: bool,
    timeout_ms: int,
) -> None:
    """Serve a web page of a Kafka cluster: brokers, topics, and groups of all types with members, tasks and lag.

    Works beside any Kafka and needs nothing installed there. The page only reads. It is served on the loopback; an
    address that others reach needs a login.

    \b
      headrace ui --bootstrap-server kafka:9092
      HEADRACE_UI_LOGIN=ops:… headrace ui --host 0.0.0.0 --allowed-host kafka-ui.example.com
    """
    from headrace.broker.network.listener import is_loopback
    from headrace.cli.exporter.snapshot_loop import in_url, serve_while_collecting
    from headrace.cli.ui.access import AccessRules, Login
    from headrace.cli.ui.cluster_login import ClusterLogin, UserPage, security_of_user
    from headrace.cli.ui.cluster_watch import ClusterWatch
    from headrace.cli.ui.instance_client import ApplicationAccess
    from headrace.cli.ui.server import PageServer
    from headrace.cli.ui.web_application import WebPage
    from headrace.client.admin import Admin

    login = None
    if login_file is not None:
        login = Login.parse(_read(login_file, "user:password"), str(login_file))
    elif os.environ.get(LOGIN_VARIABLE):
        login = Login.parse(os.environ[LOGIN_VARIABLE], LOGIN_VARIABLE)
    if tls_key is not None and tls_certificate is None:
        raise click.UsageError("--tls-key goes with --tls-certificate.")
    token = None if application_token_file is None else _read(application_token_file, "the token").strip()
    if token is not None and (not token.isascii() or len(token.split()) != 1):
        raise ConfigError(
            "bad-value",
            f"{application_token_file} has no token.",
            "Name the file of headrace.state.query.token.file: one line.",
        )
    applications = ApplicationAccess.parse(application_hosts, token)
    rules = AccessRules.for_address(host, allowed_hosts=allowed_hosts, login=login, cluster_login=cluster_login)
    if cluster_login and login is not None:
        raise click.UsageError(f"Give one of --cluster-login, and --login-file or {LOGIN_VARIABLE}.")

    def open_cluster() -> Admin:
        return open_admin(
            bootstrap_servers, client_id="headrace-ui", timeout_ms=timeout_ms, command_config=command_config
        )

    def open_page(open_as: Callable[[], Admin]) -> UserPage:
        watch = ClusterWatch(open_as, selection, interval_seconds=interval)
        page = WebPage(watch, rules, open_as, shows_records=not no_records, applications=applications)
        return UserPage(page, watch)

    # A wrong --command-config fails here, at once; the collector opens its own clients.
    open_cluster().close()
    page: WebPage | ClusterLogin
    if cluster_login:
        settings = client_settings("headrace-ui", timeout_ms=timeout_ms, command_config=command_config)
        security_of_user(settings["security"], "user", "password")  # refuses a connection without passwords

        def open_as(user: str, password: str) -> Admin:
            given = settings | {"security": security_of_user(settings["security"], user, password)}
            return Admin(bootstrap_servers, **given)

        page, run = ClusterLogin(rules, open_as, open_page), _wait
    else:
        single = open_page(open_cluster)
        page, run = single.page, single.watch.run
    server = PageServer(page, host=host, port=port, certificate=tls_certificate, key=tls_key)
    if not is_loopback(host) and tls_certificate is None:
        echo_err("The login and all data travel unencrypted: set --tls-certificate, or put a proxy with TLS in front.")
    if ends_with_stdin:
        threading.Thread(target=_end_with_stdin, name="headrace-stdin", daemon=True).start()
    scheme = "https" if tls_certificate else "http"
    serve_while_collecting(server, run, lambda served: f"Page: {scheme}://{in_url(host)}:{served.port}/")


def _wait(stop: threading.Event) -> None:
    """Collect nothing: each user has a collector."""
    stop.wait()


def _end_with_stdin() -> None:
    """Stop this process, as SIGTERM does, when the process that holds the other end of stdin has ended."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _read(path: Path, content: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("bad-value", f"{path} cannot be read: {error}", f"Name a file with {content}.") from None
