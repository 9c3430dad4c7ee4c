"""`headrace prepare`: what every start of Spark would do again is done once on this machine."""

from __future__ import annotations

import time

import click

from headrace.cli.terminal import data, echo_err

__all__ = ["command"]


@click.command("prepare")
@click.option("--if-missing", is_flag=True, help="Do nothing where the archive for this Java and pyspark is there.")
def command(if_missing: bool) -> None:
    """Let applications start faster on this machine.

    Runs a small application of its own, whose JVM keeps Spark's classes, read and verified, in a file of about 170 MB
    (Java's class data sharing); every later start maps it. Python's compiled kernels are made on the way. Prints where
    the file lies: in HEADRACE_CACHE_DIR, else in headrace below XDG_CACHE_HOME or ~/.cache. Needs the extra `cluster`
    and Java 17 or later. Again after an upgrade of Java or pyspark; in an image, after the installation.
    """
    from headrace.cli.cds_training import make_archive
    from headrace.spark.cds_archive import archive_path
    from headrace.spark.spark_session import check_java

    # The name contains a hash of Java's and pyspark's files, so "is it there" also means "does it fit".
    path = archive_path(check_java())
    if not (if_missing and path.exists()):
        began = time.monotonic()
        make_archive(path)
        echo_err(f"prepared in {time.monotonic() - began:.0f} s: {path.stat().st_size / 1e6:.0f} MB")
    data(str(path))
