"""Spark's Real-time Mode on the project's own Spark (4.3.0), with the newest Kafka connector that can be had.

Of `spark-sql-kafka-0-10_2.13` Maven has 4.2.0 and no 4.3.0, of its token provider nothing newer than 4.0.0. These two,
with kafka-clients 3.9.0, do run on Spark 4.3.0 under `trigger(realTime=..)`. It is no combination that anybody
supports, so a failure of it says little; Structured Streaming's micro-batches are measured with whole releases. In
Real-time Mode each task of each stage holds a core all the time: the session gets `local[..]` with as many threads.
"""

from __future__ import annotations

import sys
from pathlib import Path

from peers.spark_400 import BUILD, Jar, SparkPeer, fetch_jars

__all__ = ["RealTimeSpark"]

JARS: tuple[Jar, ...] = (
    ("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    ("org.apache.kafka", "kafka-clients", "3.9.0"),
    ("org.apache.commons", "commons-pool2", "2.12.0"),
)
JAR_DIRECTORY = BUILD / "spark-4.3.0-jars"


class RealTimeSpark(SparkPeer):
    """`spark_streaming.py` in this very environment's PySpark."""

    def installed(self) -> tuple[str, list[Path], Path]:
        fetch_jars(JARS, JAR_DIRECTORY)
        jars = [JAR_DIRECTORY / f"{artifact}-{version}.jar" for _, artifact, version in JARS]
        return sys.executable, jars, BUILD / "spark-4.3.0.log"
