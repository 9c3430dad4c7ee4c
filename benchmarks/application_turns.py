"""Common parts of the benchmarks of whole applications: alternating runs on one broker beside a session of Structured
Streaming, and the options for number, size and place.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack
from typing import Any

import json_topic as topics
from spark_source import MASTER

__all__ = ["GUARANTEES", "ApplicationTurns", "add_common_options", "add_options"]

GUARANTEES = ("at_least_once", "exactly_once_v2")


class ApplicationTurns:
    """Contenders that run one after the other, each run with its own group, state directory and sink. Mutable."""

    def __init__(self, bootstrap: str, options: argparse.Namespace, stack: ExitStack, *, with_spark: bool) -> None:
        self._bootstrap, self._options, self._number = bootstrap, options, 0
        self._brokers = topics.descendants(os.getpid()) - {os.getpid()}
        self._directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-"))
        self._peer: Any = None
        if with_spark:
            from peers.spark_400 import SparkPeer

            given = ["--bootstrap-server", bootstrap, "--master", MASTER]
            self._peer = stack.enter_context(SparkPeer("spark_streaming.py", given))


def add_options(parser: argparse.ArgumentParser, *, records: int) -> None:
    """`records`: the default."""
    parser.add_argument("--records", type=int, default=records)
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    add_common_options(parser)


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """On which broker, with which settings, told how."""
    parser.add_argument("--setting", action="append", default=[], help="of our application, name=value")
    parser.add_argument("--broker", choices=("headrace", "kafka"), default="headrace")
    parser.add_argument("--bootstrap-server")
    parser.add_argument("--json", action="store_true")
