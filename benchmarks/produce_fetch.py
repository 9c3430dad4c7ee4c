"""MB/s of produce and fetch with Java clients: ours beside Apache Kafka 4.3.1.

Both brokers run for the whole time, each a process of its own, and are loaded alternately (A B A B). Each client is a
JVM of its own: Kafka's ProducerPerformance with its defaults (batch.size 16384, linger.ms 5, acks=all, idempotent), and
its ConsumerPerformance, each in a consumer group of its own, so several read everything each; its `fetch.time.ms`
counts, without the time to join. MB are 2^20 bytes, as the tools count them. The rate is all records of all clients by
the time of the slowest client; MB per broker CPU second is what a busy machine leaves to compare. A second table is
made with an fsync before every acknowledgement (`headrace.flush.policy=always` beside Kafka's
`log.flush.interval.messages=1`). Prints tables, or JSON with --json. `--megabytes 0` makes the second table alone, in
less than three minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from load_contenders import Contender, apache_kafka, headrace_broker, outputs, tool

MIB = 2**20
PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"
SENT = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec", re.MULTILINE)
RECORDS, FETCH_TIME_MS = 4, 7  # columns of ConsumerPerformance
PARTITIONS = 4
DEADLINE_S = 300


def main() -> None:
    arguments = parse_arguments()
    told = []
    for fsync, fsync_kafka, megabytes in (
        (arguments.fsync, arguments.fsync_kafka, arguments.megabytes),
        ("always", "always", arguments.always_megabytes),
    ):
        if megabytes:
            told.append(by_turns(fsync, fsync_kafka, megabytes, arguments))
    if arguments.json:
        print(json.dumps(told))


def by_turns(fsync: str, fsync_kafka: str, megabytes: int, arguments: argparse.Namespace) -> dict[str, object]:
    """Both brokers under one fsync policy each; prints the table, or answers what JSON is made of."""
    figures: dict[tuple[str, str], list[dict[str, float]]] = {}
    with contextlib.ExitStack() as running:
        contenders = [running.enter_context(headrace_broker(fsync))]
        if not arguments.without_kafka:
            contenders.append(running.enter_context(apache_kafka(fsync_kafka)))
        for contender in contenders:  # warm: Java compiles what is hot
            measure(contender, "warm", 1000, 1, max(1, megabytes // 2), fetches=fsync != "always")
        shapes = [(size, clients) for size in arguments.record_size for clients in arguments.clients]
        for size, clients in shapes:
            for turn in range(arguments.rounds):
                for contender in contenders:
                    topic = f"load-{size}-{clients}-{turn}"
                    # A fetch does not sync.
                    found = measure(contender, topic, size, clients, megabytes, fetches=fsync != "always")
                    for way, figure in found.items():
                        key = f"{way}, {size} B, clients {clients}", contender.name
                        figures.setdefault(key, []).append(figure)
                        print(f"{contender.name}, {key[0]}: {figure['mb_per_s']:.1f} MB/s", file=sys.stderr, flush=True)
        return report(figures, contenders, megabytes, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record-size", type=int, action="append", help="bytes of a record's value (100 and 1024)")
    parser.add_argument("--clients", type=int, action="append", help="clients at once (1 and 4)")
    parser.add_argument("--megabytes", type=int, default=400, help="written in a round, by all clients together (400)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fsync", default="interval", help="ours: never, interval (default) or always")
    parser.add_argument("--fsync-kafka", default="never", help="never (Kafka's default) or always")
    parser.add_argument(
        "--always-megabytes", type=int, default=40, help="produced with fsync always by both; 0 leaves it out (40)"
    )
    parser.add_argument("--short", action="store_true", help="one round of little")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--without-kafka", action="store_true")
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.megabytes, arguments.always_megabytes = 1, 100, 0
    arguments.record_size = arguments.record_size or [100, 1024]
    arguments.clients = arguments.clients or [1, 4]
    return arguments


def measure(
    contender: Contender, topic: str, size: int, clients: int, megabytes: int, *, fetches: bool
) -> dict[str, dict[str, float]]:
    """Writes and reads a new topic of four partitions, and removes it."""
    contender.create_topic(topic, PARTITIONS)
    try:
        found = {"produce": produce(contender, topic, size, clients, megabytes)}
        if fetches:
            found["fetch"] = fetch(contender, topic, size, clients, megabytes)
        return found
    finally:
        contender.delete_topic(topic)


def produce(contender: Contender, topic: str, size: int, clients: int, megabytes: int) -> dict[str, float]:
    each = megabytes * MIB // size // clients
    common = ["--topic", topic, "--num-records", str(each), "--record-size", str(size), "--throughput", "-1"]
    cpu, began = contender.cpu_seconds(), time.monotonic()
    said = outputs(
        [tool(PRODUCER, [*common, "--bootstrap-server", contender.bootstrap_servers]) for _ in range(clients)],
        DEADLINE_S,
    )
    slowest = 0.0
    for text in said:
        count, rate = SENT.findall(text)[-1]
        if int(count) != each:
            raise SystemExit(f"{contender.name} took {count} of {each} records:\n{text}")
        slowest = max(slowest, each / float(rate))
    return figure(contender, each * size * clients / MIB, slowest, cpu, began)


def fetch(contender: Contender, topic: str, size: int, clients: int, megabytes: int) -> dict[str, float]:
    records = megabytes * MIB // size // clients * clients
    arguments = ["--bootstrap-server", contender.bootstrap_servers, "--topic", topic, "--num-records", str(records)]
    arguments += ["--timeout", "60000"]  # a busy broker may need more than the tool's ten seconds for the join
    cpu, began = contender.cpu_seconds(), time.monotonic()
    said = outputs(
        [tool(CONSUMER, [*arguments, "--group", f"{topic}-{i}", "--hide-header"]) for i in range(clients)], DEADLINE_S
    )
    slowest = 0.0
    for text in said:
        row = text.strip().splitlines()[-1].split(", ")
        count, fetch_ms = int(row[RECORDS]), int(row[FETCH_TIME_MS])
        if count < records:
            raise SystemExit(f"{contender.name} gave {count} of {records} records:\n{text}")
        slowest = max(slowest, fetch_ms / 1000)
    return figure(contender, records * size * clients / MIB, slowest, cpu, began)


def figure(contender: Contender, megabytes: float, seconds: float, cpu: float, began: float) -> dict[str, float]:
    spent = contender.cpu_seconds() - cpu
    return {
        "mb_per_s": megabytes / seconds,
        "mb_per_cpu_s": megabytes / max(spent, 0.01),
        "broker_cpu_s": spent,
        "wall_s": time.monotonic() - began,
    }


def report(
    figures: dict[tuple[str, str], list[dict[str, float]]],
    contenders: list[Contender],
    megabytes: int,
    arguments: argparse.Namespace,
) -> dict[str, object]:
    medians = {
        key: {name: statistics.median(found[name] for found in rounds) for name in rounds[0]}
        for key, rounds in figures.items()
    }
    memory = {contender.name: contender.rss_mb() for contender in contenders}
    most = {contender.name: contender.rss_mb("VmHWM") for contender in contenders}
    rows = [{"what": what, "broker": name, **found} for (what, name), found in medians.items()]
    told: dict[str, object] = {"benchmark": "produce_fetch", "medians": rows, "rss_mb": memory, "most_rss_mb": most}
    told["fsync"] = {contender.name: contender.fsync for contender in contenders}
    if arguments.json:
        return told
    print(
        f"medians of {arguments.rounds} rounds alternating, {megabytes} MB each; load average {os.getloadavg()[0]:.1f}"
    )
    print(f"{'':<28}" + "".join(f"{f'{each.name}, fsync {each.fsync}':>42}" for each in contenders))
    for what in dict.fromkeys(what for what, _ in medians):
        found = [medians[what, contender.name] for contender in contenders]
        line = "".join(f"{each['mb_per_s']:>18.1f} MB/s {each['mb_per_cpu_s']:>8.0f} MB/CPU-s" for each in found)
        if len(found) == 2:
            ours, kafka = found
            line += f"   ratio {ours['mb_per_s'] / kafka['mb_per_s']:.2f}"
            line += f", by CPU {ours['mb_per_cpu_s'] / kafka['mb_per_cpu_s']:.2f}"
        print(f"{what:<28}{line}")
    print(
        f"{'resident memory, most':<28}"
        + "".join(f"{memory[c.name]:>27.0f} MB, {most[c.name]:>5.0f} MB   " for c in contenders)
    )
    return told


if __name__ == "__main__":
    main()
