"""`headrace verify APP`: the application recomputed as one Spark batch, and compared with what it wrote."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.options import DEFAULT_BOOTSTRAP_SERVERS, application_argument, application_config_option, json_option
from headrace.cli.terminal import align, data, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from headrace.spark.verification.verdict import Verdict

__all__ = ["command", "repeats", "sink_lines", "verdict_line"]


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
    from headrace.cli.application import configure_by_file, load_application, spark_quietly

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
        # A broker that was running already belongs to a run of `--dev` or to the user; it goes on.
        if broker.started:
            broker.stop()


def verdict_lines(verdict: Verdict) -> list[str]:
    """The verdict for a person."""
    from headrace.cli.commands.verify import sink_lines, verdict_line

    document = verdict.as_document()
    lines = sink_lines(document)
    lines += [f"  cannot claim   {reason}" for reason in verdict.cannot_claim]
    if verdict.waiting:
        lines.append(f"  note           {verdict.waiting:,} records of the input are not processed yet")
    lines += ["", f"  {verdict_line(document)}"]
    return lines


EXAMPLES = 3


def sink_lines(document: Mapping[str, Any], *, examples: bool = True) -> list[str]:
    """Return one row per sink and one for the records; under a sink that is wrong, its first rows that differ."""
    sinks = document["sinks"]
    rows = [
        ["Verdict", "", "expected", "found", "equal", "with repeats", "wrong"],
        *([s["topic"], f"{s['kind']}, {_unit(s)}", *(f"{count:,}" for count in _counts(s))] for s in sinks),
    ]
    lost = sum(sink["lost"] for sink in sinks)
    lines = align(_align_right(rows), indent="  ")
    lines.append(f"  records   {document['records']:,} counted   {lost:,} lost   {repeats(document):,} repeated")
    if document["bad_records"]:
        lines.append(f"  records   {document['bad_records']:,} could not be decoded and were left out on both sides")
    for sink in sinks:
        if sink["undecided"]:
            lines.append(f"  {sink['topic']}: undecided: {sink['undecided']}")
        shown = sink["examples"][:EXAMPLES] if examples else ()
        lines += [f"  {sink['topic']}: {example}" for example in shown]
    return lines


def _counts(sink: Mapping[str, Any]) -> tuple[int, int, int, int, int]:
    # Expected rows that appear more often than expected are "repeats", allowed under at least once; rows that no batch
    # produces are "extra" and wrong under any guarantee.
    wrong = sink["differ"] + sink["missing"] + sink["extra"]
    with_repeats = max(0, sink["found"] - sink["equal"] - sink["differ"] - sink["extra"]) if sink["repeated"] else 0
    return sink["expected"], sink["found"], sink["equal"], with_repeats, wrong


def _unit(sink: Mapping[str, Any]) -> str:
    return "keys" if sink["kind"] == "table" else "records"


def _align_right(rows: list[list[str]]) -> list[list[str]]:
    """Align numbers to the right, names to the left."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    return [row[:2] + [text.rjust(size) for text, size in zip(row[2:], widths[2:], strict=True)] for row in rows]


def repeats(document: Mapping[str, Any]) -> int:
    """The most records that any sink holds twice: a record that was read twice shows in several sinks."""
    # The maximum and not the sum: one record that was read twice repeats a row in every sink behind it.
    return max((int(sink["repeated"]) for sink in document["sinks"]), default=0)


def verdict_line(document: Mapping[str, Any]) -> str:
    """Return the last line: the meaning of the verdict."""
    status = document["status"]
    if status == "equal":
        return "EQUAL: the stream's results are what one Spark batch over the same records gives."
    if status == "repeated":
        again = f"{repeats(document):,} repeated, allowed after a kill: at least once"
        return f"EQUAL but for repeats: {again}. Nothing is lost."
    if status == "differs":
        return "DIFFERS: beyond what the guarantee allows."
    return f"CANNOT TELL: {document['undecided'] or 'see above'}."
