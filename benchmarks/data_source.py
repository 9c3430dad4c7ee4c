"""`format("headrace")` beside Spark's JVM Kafka connector: the same queries, one broker, one run.

    python benchmarks/data_source.py [--records 2000000] [--json] [--broker kafka]

  read      `spark.read`: values are counted and their lengths summed up by Spark SQL
  stream    `readStream` with availableNow into Spark's sink `noop`
  write     `writeStream` from Parquet files; ours exactly once, the connector at least once

The connector runs with Spark 4.0.0, with its defaults and tuned (`TUNED`); ours as a job that changes its format, and
with `.schema("value binary")` ("headrace, value"). Each way runs once untimed; then the ways
take turns. Both sides have a plain session with two cores. Seconds of streams are the sum of their micro-batches
(`triggerExecution`), as Spark reports them. CPU is that of driver, JVM and Python workers, on Linux. Figures are
medians; the machine is noisy, quote the ratios, and those of CPU where other programs run. The broker runs on the same
cores: ours, or Apache Kafka 4.3.1 with `--broker kafka`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import secrets
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))
from peers.spark_400 import BUILD, SparkPeer
from spark_source import BROKERS, VALUE_BYTES, cluster, loaded

MASTER = "local[2]"
TUNED = {
    # Without the first, the connector waits half a second at the end of each partition.
    "read": {"kafka.fetch.max.wait.ms": "1", "kafka.max.poll.records": "10000"}
    | {"kafka.max.partition.fetch.bytes": "8388608"},
    "write": {"kafka.batch.size": "1000000", "kafka.linger.ms": "20", "kafka.buffer.memory": "134217728"},
}
TUNED["stream"] = TUNED["read"]
WAYS = ("read", "stream", "write")


class OurDataSource(SparkPeer):
    """Our side: the same script with our PySpark."""

    def installed(self) -> tuple[str, list[Path], Path]:
        BUILD.mkdir(parents=True, exist_ok=True)
        return sys.executable, [], BUILD / "data-source.log"


def cpu_seconds(pid: int) -> float:
    """CPU of a process and all below it, with those that have ended; 0 where there is no /proc."""
    children: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        children.setdefault(int(fields[1]), []).append(int(status.parent.name))
        ticks[int(status.parent.name)] = sum(map(int, fields[11:15]))
    found, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        found += ticks.get(each, 0)
        waiting += children.get(each, [])
    return found / os.sysconf("SC_CLK_TCK")


def count_committed(bootstrap: str, topic: str) -> int:
    """The committed records of a topic."""
    from headrace.client.admin import Admin
    from headrace.client.fetcher import Fetcher
    from headrace.client.network_client import NetworkClient

    with NetworkClient(bootstrap) as client:
        partitions = [(topic, number) for number in client.known_topics([topic], refresh=True).topics[topic].partitions]
        ends = Admin(client).list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
        ranges = {key: (0, found.offset) for key, found in ends.items() if found.offset > 0}
        fetched = Fetcher(client, isolation_level="read_committed").fetch_ranges(ranges, columns=("offset",))
        return sum(each.table.num_rows for each in fetched)


def sides_of(way: str, *, with_connector: bool) -> list[tuple[str, str, dict[str, str], str]]:
    """Label, format, options and schema of what is compared."""
    sides: list[tuple[str, str, dict[str, str], str]] = [("headrace", "headrace", {}, "")]
    if way != "write":
        sides.append(("headrace, value", "headrace", {}, "value binary"))
    if with_connector:
        sides += [("connector", "kafka", {}, ""), ("connector tuned", "kafka", TUNED[way], "")]
    return sides


def measure(options: argparse.Namespace) -> dict[str, Any]:
    from headrace.client.admin import Admin

    records = options.records // options.partitions * options.partitions
    spent: dict[str, dict[str, list[tuple[float, float]]]] = {way: {} for way in options.ways}
    versions = {}
    with ExitStack() as stack:
        bootstrap = stack.enter_context(cluster(None, options.broker))
        print(f"loading {records:,} records …", file=sys.stderr)
        topic = next(iter(stack.enter_context(loaded(bootstrap, records, options.partitions))))[0]
        files = stack.enter_context(tempfile.TemporaryDirectory(prefix="data-source-"))
        peers: dict[str, SparkPeer] = {}
        for name, kind in (("headrace", OurDataSource), ("kafka", SparkPeer)):
            if name == "kafka" and options.without_connector:
                continue
            given = ["--format", name, "--bootstrap-server", bootstrap, "--master", MASTER]
            peers[name] = stack.enter_context(kind("data_source_queries.py", given))
            versions[name] = peers[name].version
        prepared = {"path": files, "records": records, "bytes": VALUE_BYTES, "files": 4}
        peers["headrace"].ask({"way": "prepare"} | prepared)
        admin = stack.enter_context(Admin(bootstrap))

        def run(name: str, way: str, tuning: dict[str, str], schema: str) -> tuple[float, float]:
            before = cpu_seconds(peers[name].pid)
            if way != "write":
                answer = peers[name].ask({"way": way, "topic": topic, "options": tuning, "schema": schema})
            else:
                target = f"headrace-benchmark-{secrets.token_hex(4)}"
                admin.create_topics({target: options.partitions})
                answer = peers[name].ask({"way": way, "topic": target, "path": files, "options": tuning})
                if (found := count_committed(bootstrap, target)) != records:
                    raise SystemExit(f"{name} wrote {found} records of {records}")
                admin.delete_topics([target])
            cpu = cpu_seconds(peers[name].pid) - before
            if answer["records"] != records:
                raise SystemExit(f"{name} {way}: {answer}, and not {records} records")
            return float(answer["seconds"]), cpu

        for number in range(options.runs + 1):
            for way in options.ways:
                for label, name, tuning, schema in sides_of(way, with_connector=not options.without_connector):
                    seconds, cpu = run(name, way, tuning, schema)
                    said = f"{way} {label} {seconds:.2f} s, {cpu:.2f} s of CPU"
                    print(f"run {number} of {options.runs}: {said}", file=sys.stderr)
                    if number:
                        spent[way].setdefault(label, []).append((seconds, cpu))
    return {
        "benchmark": "data_source",
        "records": records,
        "partitions": options.partitions,
        "value_bytes": VALUE_BYTES,
        "runs": options.runs,
        "broker": BROKERS[options.broker],
        "master": MASTER,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "spark": versions,
        "tuned": TUNED,
        "results": {way: summed_up(found, records) for way, found in spent.items()},
    }


def summed_up(spent: dict[str, list[tuple[float, float]]], records: int) -> dict[str, dict[str, float]]:
    results = {}
    ours, our_cpu = (statistics.median(each) for each in zip(*spent["headrace"], strict=True))
    for label, runs in spent.items():
        seconds, cpu = (statistics.median(each) for each in zip(*runs, strict=True))
        results[label] = {
            "records_per_second": round(records / seconds),
            "seconds": round(seconds, 3),
            "seconds_fastest": round(min(each for each, _ in runs), 3),
            "seconds_slowest": round(max(each for each, _ in runs), 3),
            "cpu_seconds": round(cpu, 3),
            "headrace_is_faster": round(seconds / ours, 2),
            "headrace_cpu_is_less": round(cpu / our_cpu, 2) if our_cpu else 0.0,
        }
    return results


def table(facts: dict[str, Any]) -> str:
    what = f"{facts['records']:,} values of {VALUE_BYTES} bytes, {facts['partitions']} partitions of {facts['broker']}"
    lines = [
        f"{what}, {MASTER}; Spark {facts['spark']}; median of {facts['runs']} runs, alternating",
        f"{'':28}{'records/s':>11}{'seconds':>9}{'(min – max)':>18}{'headrace ×':>12}{'CPU s':>8}{'CPU ×':>8}",
    ]
    for way, rows in facts["results"].items():
        for label, row in rows.items():
            spread = f"({row['seconds_fastest']:.2f} – {row['seconds_slowest']:.2f})"
            lines.append(
                f"{way:8}{label:20}{row['records_per_second']:>11,}{row['seconds']:>9.2f}{spread:>18}"
                f"{row['headrace_is_faster']:>12.2f}{row['cpu_seconds']:>8.2f}{row['headrace_cpu_is_less']:>8.2f}"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--without-connector", action="store_true", help="our side alone; nothing is downloaded")
    parser.add_argument("--broker", choices=BROKERS, default="headrace")
    options = parser.parse_args()
    facts = measure(options)
    print(json.dumps(facts, indent=2) if options.json else table(facts))


if __name__ == "__main__":
    main()
