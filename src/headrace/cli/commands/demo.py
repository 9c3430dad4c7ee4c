"""`headrace demo`: see `headrace.cli.demo`."""

from __future__ import annotations

import click

__all__ = ["command"]


@click.command("demo")
@click.option("--fast", is_flag=True, help="Play the year as fast as it goes, without the pace that lets one watch.")
@click.option("--keep", is_flag=True, help="Leave the broker's data and the log behind.")
def command(fast: bool, keep: bool) -> int:
    """Two Spark applications share 336,776 real flights; one is killed half way; at the end everything is recomputed.

    Starts a broker and everything else by itself, in a temporary directory. About two minutes, with --fast less than
    one. Needs the extra `demo` and Java 17 or later. Exit code 0: nothing was lost and nothing repeated.
    """
    from headrace.cli.demo.steps import DemoOptions, run_demo

    return run_demo(DemoOptions(fast=fast, keep=keep))
