"""`headrace check APP`: preflight of an application against the cluster."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from headrace.cli.error_fixes import address_fix
from headrace.cli.options import application_argument, application_config_option, json_option
from headrace.cli.terminal import data, print_json

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["command"]

_PROBLEM = 1
_NO_CONNECTION = 3


@click.command("check")
@application_argument
@click.option(
    "--bootstrap-server",
    "bootstrap_servers",
    metavar="HOST:PORT[,…]",
    help="The broker or brokers to connect to, over what the application says.",
)
@application_config_option
@json_option
def command(application: str, bootstrap_servers: str | None, config_file: Path | None, as_json: bool) -> int:
    """Look at everything an application needs, without running it: broker, topics, formats, session, state directory.

    Exit code 0: it can run; 1: there is a problem; 3: no broker answers. APP is flights.py or package.module:app.
    """
    from headrace.cli.application import announce_spark, configure_by_file, load_application, spark_quietly

    # Spark's start takes seconds and prints warnings that are not findings: `spark_quietly` keeps them off the
    # terminal.
    announce_spark(application, as_json=as_json)
    with spark_quietly():
        app = load_application(application)
        configure_by_file(app, bootstrap_servers=bootstrap_servers, config_file=config_file)
        context = click.get_current_context()
        findings = [replace(finding, fix=address_fix(finding.fix, context)) for finding in app.check()]
    problems = [finding for finding in findings if finding.level == "problem"]
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            data(f"{finding.level:<8} {finding.message}")
            for label, text in (("where", finding.where), ("fix", finding.fix)):
                if text and finding.level != "ok":
                    data(f"         {label:<6} {text}")
        data()
        many = "" if len(problems) == 1 else "s"
        outcome = f"has {len(problems)} problem{many}" if problems else "can run"
        data(f"{app.name} {outcome} on {app.bootstrap_servers}")
    # 3 has priority over 1: without a broker most other findings are missing, so the count of problems says little.
    if any(finding.code == "broker-unreachable" for finding in problems):
        return _NO_CONNECTION
    return _PROBLEM if problems else 0
