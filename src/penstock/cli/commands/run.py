"""`penstock run APP`: one or several instances of an application as processes, watched together."""

from __future__ import annotations

from pathlib import Path

import click

from penstock.cli.options import DEFAULT_BOOTSTRAP_SERVERS, application_argument

__all__ = ["command"]

_REACH_MS = 5_000


@click.command("run")
@application_argument
@click.option(
    "--instances",
    type=click.IntRange(1, 26),
    default=1,
    show_default=True,
    metavar="N",
    help="How many instances share the work.",
)
@click.option(
    "--dev", is_flag=True, help="Start a broker with its data in .penstock/ if nobody answers at the address."
)
@click.option(
    "--bootstrap-server",
    "bootstrap_servers",
    metavar="HOST:PORT[,…]",
    envvar="PENSTOCK_BOOTSTRAP_SERVERS",
    show_default="what the application says, else $PENSTOCK_BOOTSTRAP_SERVERS, else localhost:9092",
    help="The broker or brokers to connect to.",
)
@click.option(
    "--until",
    type=click.Choice(["stopped", "caught-up"]),
    default="stopped",
    show_default=True,
    help="When to end: on Ctrl-C, or when everything that the topics held at the start is processed.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Settings of the application, NAME=VALUE lines, Kafka's names.",
)
def command(
    application: str, instances: int, dev: bool, bootstrap_servers: str | None, until: str, config_file: Path | None
) -> int:
    """Run an application: N processes that share its tasks, with a live table; k kills one, s starts it again, q stops.

    APP is flights.py or package.module:app. `python flights.py` does the same for one instance, without the table.

    \b
      penstock run flights.py --dev --instances 2
    """
    from penstock.cli.application import check_application_path
    from penstock.cli.running import RunOptions, run_instances
    from penstock.spark.spark_session import check_java

    check_application_path(application)
    check_java()
    if bootstrap_servers and not dev:
        _reach(bootstrap_servers)
    return run_instances(
        RunOptions(
            application=application,
            instances=instances,
            dev=dev,
            bootstrap_servers=bootstrap_servers or (DEFAULT_BOOTSTRAP_SERVERS if dev else None),
            until=until,
            config_file=config_file,
        )
    )


def _reach(bootstrap_servers: str) -> None:
    """A wrong address is told before Spark is started for nothing. Raises CannotConnect."""
    from penstock.client.network_client import NetworkClient

    with NetworkClient(bootstrap_servers, client_id="penstock-run", api_timeout_ms=_REACH_MS) as client:
        client.metadata([])
