"""`headrace telemetry`: an application of Headrace over the metrics that Kafka's clients push to a broker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import application_config_option, bootstrap_option

if TYPE_CHECKING:
    from headrace.cli.telemetry.options import TelemetryOptions

__all__ = ["command"]

SUBSCRIPTION = "headrace-telemetry"


@click.command("telemetry")
@click.option("--window", default="10 minutes", show_default=True, metavar="INTERVAL", help="Length of a window.")
@click.option(
    "--storm",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    metavar="N",
    help="Alert for a group with so many rebalances in an hour.",
)
@click.option(
    "--slow-poll-ms",
    type=click.IntRange(1),
    default=150_000,
    show_default=True,
    metavar="MS",
    help="Alert for a member with so long between two polls; half of max.poll.interval.ms by default.",
)
@click.option(
    "--standstill-ms",
    type=click.IntRange(1),
    default=60_000,
    show_default=True,
    metavar="MS",
    help="Alert for a group with a partition that stood still so long; needs --history.",
)
@click.option(
    "--team-pattern",
    default=r"^([^.]+)\.",
    show_default=True,
    metavar="REGEX",
    help="The first group of this expression, found in a client id, is the client's team.",
)
@click.option(
    "--teams",
    "teams_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A CSV file with the columns group and team, which comes before the pattern.",
)
@click.option(
    "--groups-topic", default="telemetry-groups", show_default=True, metavar="NAME", help="The table's topic."
)
@click.option(
    "--alerts-topic", default="telemetry-alerts", show_default=True, metavar="NAME", help="The alerts' topic."
)
@click.option(
    "--history",
    is_flag=True,
    help="Also read a recorder's topic: a table of rebalances and standstill by window and group.",
)
@click.option(
    "--rebalances-topic", default="telemetry-rebalances", show_default=True, metavar="NAME", help="That table's topic."
)
@click.option(
    "--subscribe",
    type=click.IntRange(100, 3_600_000),
    metavar="MS",
    help=f"First ask all consumers for the metrics in question, every MS milliseconds: subscription {SUBSCRIPTION}.",
)
@click.option(
    "--until",
    type=click.Choice(["stopped", "caught-up"]),
    default="stopped",
    show_default=True,
    help="When to end: on Ctrl-C, or when everything that the topics held at the start is processed.",
)
@application_config_option
@bootstrap_option
def command(
    window: str,
    storm: int,
    slow_poll_ms: int,
    standstill_ms: int,
    team_pattern: str,
    teams_file: Path | None,
    groups_topic: str,
    alerts_topic: str,
    history: bool,
    rebalances_topic: str,
    subscribe: int | None,
    until: str,
    config_file: Path | None,
    bootstrap_servers: str,
) -> int:
    """Summarize what clients push, by group and team: rebalances an hour, time at zero, lag, slow members.

    Runs an application with Spark over the topic of client metrics of `headrace broker`, exactly once. When a window
    closes, each group has one row in the table's topic, and an alert for a rebalance storm or a slow member. Start it
    twice and both share the work. --history adds what a recorder of groups wrote, also about groups whose clients push
    nothing.

    \b
      headrace telemetry --subscribe 60000
      headrace telemetry --window '1 hour' --teams teams.csv --storm 12
      headrace telemetry --history --standstill-ms 30000
    """
    from headrace.cli.running import RunOptions, run_instances
    from headrace.cli.telemetry.options import ENVIRONMENT, TelemetryOptions, read_teams
    from headrace.coordinator.history.history_record import HISTORY_TOPIC
    from headrace.spark.spark_session import check_java

    try:
        teams = read_teams(teams_file) if teams_file is not None else {}
    except ValueError as error:
        raise click.UsageError(f"--teams: {error}.") from None
    options = TelemetryOptions(
        window=window,
        storm=storm,
        slow_poll_ms=slow_poll_ms,
        standstill_ms=standstill_ms,
        team_pattern=team_pattern,
        teams=teams,
        groups_topic=groups_topic,
        alerts_topic=alerts_topic,
        history_topic=HISTORY_TOPIC if history else "",
        rebalances_topic=rebalances_topic,
    )
    check_java()
    _prepare_topics(bootstrap_servers, config_file, options, subscribe)
    # The instance is a process of its own that loads the application by its module: the options travel with it.
    os.environ[ENVIRONMENT] = options.to_json()
    return run_instances(
        RunOptions(
            application="headrace.cli.telemetry.application:app",
            bootstrap_servers=bootstrap_servers,
            until=until,
            config_file=config_file,
        )
    )


def _prepare_topics(
    bootstrap_servers: str, config_file: Path | None, options: TelemetryOptions, subscribe_ms: int | None
) -> None:
    """Create the topics of the results, and the subscription if asked for.

    Raises:
        click.UsageError: There is no recorder, and its topic is to be read.
        CannotConnect: No broker is reachable.
        BrokerError: The cluster refused.
    """
    from headrace.cli.options import open_admin
    from headrace.cli.telemetry.options import METRICS

    with open_admin(
        bootstrap_servers, client_id="headrace-telemetry", timeout_ms=30_000, command_config=config_file
    ) as admin:
        if options.history_topic and not admin.describe_topics([options.history_topic]).get(options.history_topic):
            raise click.UsageError(
                f"--history: there is no topic {options.history_topic}. Start the broker with "
                "headrace.group.history.records=1000, or run headrace recorder beside another Kafka."
            )
        # The alerts read the table's topic, so it has to be there before the application starts.
        admin.create_topics(dict.fromkeys(options.topics(), 1), exist_ok=True)
        if subscribe_ms is not None:
            settings = {"metrics": ",".join(METRICS), "interval.ms": str(subscribe_ms)}
            admin.alter_configs("client-metrics", SUBSCRIPTION, settings)
