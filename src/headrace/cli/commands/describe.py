"""`headrace describe APP`: what an application reads, keeps and writes. Connects to nothing."""

from __future__ import annotations

import click

from headrace.cli.options import application_argument
from headrace.cli.terminal import data

__all__ = ["command"]


@click.command("describe")
@application_argument
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "mermaid", "json"]),
    default="text",
    show_default=True,
    help="How to print it.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--acls", "principal", metavar="User:NAME", help="Print the access rules that it needs instead.")
def command(application: str, format_: str, as_json: bool, principal: str | None) -> None:
    """Print the topology of an application: subtopologies, topics, state, sinks. Needs Spark, no broker.

    APP is flights.py or package.module:app.
    """
    from headrace.cli.application import announce_spark, load_application, spark_quietly

    announce_spark(application, as_json=as_json or format_ == "json")
    with spark_quietly():
        app = load_application(application)
        if principal is not None:
            from headrace.spark.access_rules import as_commands, rules_for

            # Exactly once needs rights on transactional ids, which at least once must not ask an administrator for.
            exactly_once = app.processing_guarantee == "exactly_once_v2"
            rules = rules_for(app.compile(), principal=principal, exactly_once=exactly_once)
            text = "\n".join(f"headrace acls {line}" for line in as_commands(rules))
        else:
            text = app.describe(format="json" if as_json else format_)  # type: ignore[arg-type]
    data(text.rstrip())
