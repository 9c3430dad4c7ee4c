"""`headrace verify APP`: the application recomputed as one Spark batch, and compared with what it wrote."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from headrace.cli.options import DEFAULT_BOOTSTRAP_SERVERS, application_argument, application_config_option, json_option
from headrace.cli.terminal import data, print_json

if TYPE_CHECKING:
    from headrace.spark.verdict import Verdict

__all__ = ["command"]


@click.command("verify")
@application_argument
@click.option("--sink", "sinks", multiple=True, metavar="TOPIC", help="Only this sink; may be repeated.")
@click.option(
    "--bootstrap-server",
    "bootstrap_servers",
    metavar="HOST:PORT[,…]",
    help="The broker or brokers to connect to, over what the application says.",
)
@click.option(
    "--dev", is_flag=True, help="Start the broker of `headrace run --dev` on the data in .headrace/ if it does not run."
)
@application_config_option
@json_option
def command(
    application: str,
    sinks: tuple[str, ...],
    bootstrap_servers: str | None,
    dev: bool,
    config_file: Path | None,
    as_json: bool,
) -> int:
    """Recompute an application from its input topics as one Spark batch and compare with its sink topics.

    Exit code 0: equal, or nothing but repeats, which at least once allows after a crash; 4: differs; 5: cannot tell.
    APP is flights.py or package.module:app.
    """
    from headrace.cli.application import configure_by_file, load_application
    from headrace.cli.spark_silence import spark_quietly

    with (
        _dev_broker(bootstrap_servers) if dev else contextlib.nullcontext(bootstrap_servers) as servers,
        spark_quietly(),
    ):
        app = load_application(application)
        configure_by_file(app, bootstrap_servers=servers, config_file=config_file)
        verdict = app.verify(sinks=list(sinks) or None)
    if as_json:
        print_json(verdict.as_document())
    else:
        for line in verdict_lines(verdict):
            data(line)
    return verdict.exit_code


@contextlib.contextmanager
def _dev_broker(bootstrap_servers: str | None) -> Iterator[str]:
    """The address of the development broker; one that is started here is stopped at the end."""
    from headrace.cli.dev_broker import DevBroker

    address = bootstrap_servers or os.environ.get("HEADRACE_BOOTSTRAP_SERVERS") or DEFAULT_BOOTSTRAP_SERVERS
    broker = DevBroker.open(address)
    try:
        yield address
    finally:
        if broker.started:
            broker.stop()


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict for a person."""
    from headrace.cli.verdict_report import ending, sink_lines

    document = verdict.as_document()
    lines = sink_lines(document)
    lines += [f"  cannot claim   {reason}" for reason in verdict.cannot_claim]
    if verdict.waiting:
        lines.append(f"  note           {verdict.waiting:,} records of the input are not processed yet")
    lines += ["", f"  {ending(document)}"]
    return lines
