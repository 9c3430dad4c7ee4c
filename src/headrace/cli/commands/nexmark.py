"""`headrace nexmark`: one query of the Nexmark benchmark, with a live view, verified. See `headrace.nexmark`."""

from __future__ import annotations

import click

from headrace.cli.options import json_option
from headrace.nexmark import QUERY_NAMES

__all__ = ["command"]


@click.command("nexmark")
@click.argument("query", metavar="QUERY", type=click.Choice(QUERY_NAMES), required=False)
@click.option("--list", "show_list", is_flag=True, help="List the queries.")
@click.option("--events", type=click.IntRange(1), default=1_000_000, show_default=True, help="Persons, auctions, bids.")
@click.option(
    "--event-rate",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Events per second of event time: it decides how many windows the events fill.",
)
@click.option(
    "--disorder",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Shuffle the events within groups of this size.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Of the random fields.")
@click.option(
    "--send-rate",
    type=click.IntRange(1),
    metavar="N",
    help="Send so many events per second while the query runs, and show its latency. Without it, all events are sent "
    "before the query starts.",
)
@click.option("--partitions", type=click.IntRange(1), default=8, show_default=True, help="Of each topic.")
@click.option("--at-least-once", is_flag=True, help="Without transactions.")
@click.option(
    "--bootstrap-server",
    "bootstrap_servers",
    metavar="HOST:PORT[,…]",
    help="The broker or brokers to use; without it a broker is started, and removed with its data at the end.",
)
@click.option("--prefix", default="nexmark", show_default=True, metavar="NAME", help="Of the names of all topics.")
@json_option
def command(
    query: str | None,
    show_list: bool,
    events: int,
    event_rate: int,
    disorder: int,
    seed: int,
    send_rate: int | None,
    partitions: int,
    at_least_once: bool,
    bootstrap_servers: str | None,
    prefix: str,
    as_json: bool,
) -> int:
    """Run one Nexmark query over generated events, and compare its result with one Spark batch.

    QUERY is q0 to q22. The same options make the same events, on any machine. On a broker of your own the topics
    NAME-person, NAME-auction and NAME-bid stay and are used again; results and internal topics are deleted. Exit
    code 0: equal, 4: different.

    \b
      headrace nexmark q17 --events 1000000
    """
    from headrace.cli.nexmark_run import NexmarkOptions, list_queries, run_query

    if show_list:
        list_queries(as_json=as_json)
        return 0
    if query is None:
        raise click.UsageError("Give a query, q0 to q22, or --list.")
    return run_query(
        NexmarkOptions(
            query=query,
            events=events,
            event_rate=event_rate,
            disorder=disorder,
            seed=seed,
            send_rate=send_rate,
            partitions=partitions,
            at_least_once=at_least_once,
            bootstrap_servers=bootstrap_servers,
            prefix=prefix,
            as_json=as_json,
        )
    )
