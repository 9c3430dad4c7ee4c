"""`headrace run APP`: one or several instances of an application as processes, watched together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from headrace.cli.dev_broker import SAMPLES
from headrace.cli.options import DEFAULT_BOOTSTRAP_SERVERS, application_argument, application_config_option
from headrace.client.client_settings import SECURITY_SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["command"]

_REACH_MS = 5_000


@click.command("run")
@application_argument
@click.option(
    "--instances",
    # 26, because instances are called A to Z in the table and in log names.
    type=click.IntRange(1, 26),
    default=1,
    show_default=True,
    metavar="N",
    help="How many instances share the work.",
)
@click.option(
    "--dev",
    is_flag=True,
    help="Start a broker with its data in .headrace/ if no broker answers at the address, and create the topics that "
    "the program names.",
)
@click.option(
    "--sample",
    type=click.Choice(SAMPLES),
    help="With --dev: send sample records to the topic of this name while the application runs; with --until "
    "caught-up, before it starts.",
)
@click.option(
    "--bootstrap-server",
    "bootstrap_servers",
    metavar="HOST:PORT[,…]",
    envvar="HEADRACE_BOOTSTRAP_SERVERS",
    show_default="what the application says, else $HEADRACE_BOOTSTRAP_SERVERS, else localhost:9092",
    help="The broker or brokers to connect to.",
)
@click.option(
    "--until",
    type=click.Choice(["stopped", "caught-up"]),
    default="stopped",
    show_default=True,
    help="When to end: on Ctrl-C, or when everything that the topics held at the start is processed.",
)
@application_config_option
def command(
    application: str,
    instances: int,
    dev: bool,
    sample: str | None,
    bootstrap_servers: str | None,
    until: str,
    config_file: Path | None,
) -> int:
    """Run an application: N processes that share its tasks, with a live table; k kills one, s starts it again, q stops.

    APP is flights.py or package.module:app. `python flights.py` does the same for one instance, without the table.
    Source topics that do not exist are waited for. Ctrl-C stops as q does.

    \b
      headrace run flights.py --dev --sample flights --instances 2
    """
    from headrace.cli.application import check_application_path
    from headrace.cli.running import RunOptions, run_instances
    from headrace.spark.spark_session import check_java

    if sample is not None and not dev:
        raise click.UsageError("--sample needs --dev: it creates topics and sends records.")
    # Everything that can be checked without Spark is checked first: its start takes seconds, in each of N processes.
    check_application_path(application)
    check_java()
    if bootstrap_servers and not dev:
        _reach(bootstrap_servers, config_file)
    return run_instances(
        RunOptions(
            application=application,
            instances=instances,
            dev=dev,
            sample=sample,
            bootstrap_servers=bootstrap_servers or (DEFAULT_BOOTSTRAP_SERVERS if dev else None),
            until=until,
            config_file=config_file,
        )
    )


def _reach(bootstrap_servers: str, config_file: Path | None) -> None:
    """Check the address before Spark is started. Raises CannotConnect.

    The application may set its own security options, which are not known yet. So without a configuration file it is
    enough that a process listens at the address.
    """
    from headrace.cli.instances import answers
    from headrace.client.client_settings import read_properties
    from headrace.client.cluster_metadata import parse_bootstrap_servers
    from headrace.client.configuration import ClientConfiguration
    from headrace.client.network_client import NetworkClient

    given = read_properties(config_file) if config_file is not None else {}
    configuration = ClientConfiguration({name: given[name] for name in SECURITY_SETTINGS & given.keys()})
    addresses = parse_bootstrap_servers(bootstrap_servers)
    # A full connection only where the security is known from the file or the environment. Otherwise a TLS listener
    # would be tried in the clear and look unreachable.
    unsaid = configuration.source("security.protocol") == "default"
    if unsaid and any(answers(address.host, address.port) for address in addresses):
        return
    client = NetworkClient(
        bootstrap_servers, client_id="headrace-run", api_timeout_ms=_REACH_MS, security=configuration.security
    )
    with client:
        client.metadata([])
