"""Records per second of consumers in a group: our Arrow batches and records, beside confluent-kafka, in one run.

One broker (Apache Kafka 4.3.1, or the one at --bootstrap-servers), one topic of four partitions that is written first.
Each consumer is a process of its own that joins a new group with auto.offset.reset=earliest, reads everything with
auto commit on, and takes the time from its first rows on; they take turns (A B C A B C). confluent-kafka reads with
`consume(10000)`, its fastest way; with its defaults it stands still for a second whenever 100,000 records are queued,
so it runs a second time with a queue that never fills (TUNED). What is done with the rows: they are counted, nothing
else; `--touch` sums up the bytes of all values, in Arrow with a kernel, in Python with a loop. CPU seconds are the
consumer process' own.
Prints a table, or JSON with --json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

PARTITIONS = 4
CONSUMERS = ("headrace Arrow", "headrace records", "confluent-kafka", "confluent-kafka, tuned")
TUNED = {"queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000, "fetch.queue.backoff.ms": 1}
DEADLINE_S = 120


def main() -> None:
    arguments = parse_arguments()
    if arguments.consume:
        print(json.dumps(consume(arguments)))
        return
    with contextlib.ExitStack() as running:
        servers = arguments.bootstrap_servers
        if servers is None:
            from tests.interop.kafka_broker import KafkaBroker

            servers = running.enter_context(KafkaBroker()).bootstrap_servers
        topic = f"load-{uuid.uuid4().hex[:8]}"
        fill(servers, topic, arguments)
        figures: dict[str, list[dict[str, float]]] = {name: [] for name in CONSUMERS}
        for _ in range(arguments.rounds):
            for name in CONSUMERS:
                figures[name].append(measured(name, servers, topic, arguments))
    report(figures, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--record-size", type=int, default=100, help="bytes of a value (100)")
    parser.add_argument("--compression", default="none")
    parser.add_argument("--group-protocol", default="consumer", choices=("consumer", "classic"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--touch", action="store_true", help="look at every value")
    parser.add_argument("--bootstrap-servers", help="a broker that runs; else Apache Kafka 4.3.1 is started")
    parser.add_argument("--short", action="store_true", help="one round of little")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--consume", choices=CONSUMERS, help=argparse.SUPPRESS)
    parser.add_argument("--topic", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.short:
        arguments.rounds, arguments.records = 1, 200_000
    return arguments


def fill(servers: str, topic: str, arguments: argparse.Namespace) -> None:
    import pyarrow as pa

    from headrace.client.admin import Admin
    from headrace.client.network_client import NetworkClient
    from headrace.client.sender import Sender
    from headrace.protocol.arrow_batches import encode_from_arrow

    with NetworkClient(servers) as client:
        Admin(client).create_topics({topic: PARTITIONS})
        queue = Sender(client)
        each, at = 100_000, 0
        while at < arguments.records:
            count = min(each, arguments.records - at)
            values = pa.array([os.urandom(8).hex().ljust(arguments.record_size, "x").encode()] * count, pa.binary())
            keys = pa.array([b"%d" % number for number in range(count)], pa.binary())
            now_ms = int(time.time() * 1000)
            for batch in encode_from_arrow(keys, values, timestamps_ms=now_ms, compression=arguments.compression):
                queue.add(topic, at // each % PARTITIONS, batch)
            at += count
        queue.flush()


def measured(name: str, servers: str, topic: str, arguments: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, __file__, "--consume", name, "--bootstrap-servers", servers, "--topic", topic]
    command += ["--records", str(arguments.records), "--group-protocol", arguments.group_protocol]
    out = subprocess.run(
        [*command, *(["--touch"] if arguments.touch else [])],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )
    if out.returncode != 0:
        raise SystemExit(f"{name} failed:\n{out.stdout}{out.stderr}")
    found: dict[str, float] = json.loads(out.stdout)
    return found


def consume(arguments: argparse.Namespace) -> dict[str, float]:
    """In the process that is measured."""
    read = {
        "confluent-kafka": read_confluent,
        "confluent-kafka, tuned": read_confluent,
        "headrace Arrow": read_arrow,
        "headrace records": read_records,
    }
    first, cpu, count = read[arguments.consume](arguments, f"bench-{uuid.uuid4().hex[:8]}")
    took, spent = time.monotonic() - first, time.process_time() - cpu
    if count < arguments.records:
        raise SystemExit(f"{count} of {arguments.records} records came")
    return {"records_per_s": count / took, "records_per_cpu_s": count / max(spent, 0.001), "took_s": took}


def read_arrow(arguments: argparse.Namespace, group: str) -> tuple[float, float, int]:
    import pyarrow.compute as pc

    from headrace import Consumer
    from headrace.protocol.arrow_batches import warm_up

    warm_up()  # compiled kernels are loaded from their cache
    first = cpu = 0.0
    count = touched = 0
    with Consumer(arguments.topic, group_id=group, **ours(arguments)) as consumer:
        while count < arguments.records:
            batch = consumer.poll()
            if not count:
                first, cpu = time.monotonic(), time.process_time()
            count += batch.num_rows
            if arguments.touch and batch.num_rows:
                touched += pc.sum(pc.binary_length(batch.column("value"))).as_py()
    return first, cpu, count


def read_records(arguments: argparse.Namespace, group: str) -> tuple[float, float, int]:
    from headrace import Consumer

    first = cpu = 0.0
    count = touched = 0
    with Consumer(arguments.topic, group_id=group, **ours(arguments)) as consumer:
        while count < arguments.records:
            records = consumer.poll_records()
            if not count:
                first, cpu = time.monotonic(), time.process_time()
            count += len(records)
            if arguments.touch:
                for record in records:
                    touched += len(record.value or b"")
    return first, cpu, count


def read_confluent(arguments: argparse.Namespace, group: str) -> tuple[float, float, int]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap_servers,
            "group.id": group,
            "group.protocol": arguments.group_protocol,
            "auto.offset.reset": "earliest",
            **(TUNED if "tuned" in arguments.consume else {}),
        }
    )
    consumer.subscribe([arguments.topic])
    first = cpu = 0.0
    count = touched = 0
    while count < arguments.records:
        messages = consumer.consume(10_000, 1.0)
        if not count:
            first, cpu = time.monotonic(), time.process_time()
        count += len(messages)
        if arguments.touch:
            for message in messages:
                touched += len(message.value() or b"")
    consumer.close()
    return first, cpu, count


def ours(arguments: argparse.Namespace) -> dict[str, object]:
    return {
        "bootstrap_servers": arguments.bootstrap_servers,
        "auto_offset_reset": "earliest",
        "group_protocol": arguments.group_protocol,
    }


def report(figures: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    medians = {
        name: {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}
        for name, rounds in figures.items()
    }
    if arguments.json:
        rows = [{"consumer": name, **found} for name, found in medians.items()]
        print(json.dumps({"benchmark": "consumer", "records": arguments.records, "medians": rows}))
        return
    print(
        f"medians of {arguments.rounds} rounds alternating, {arguments.records} records of {arguments.record_size} B, "
        f"group.protocol={arguments.group_protocol}; load average {os.getloadavg()[0]:.1f}"
    )
    base = medians["confluent-kafka, tuned"]
    for name, found in medians.items():
        cells = [
            f"{found[key]:>12,.0f} {unit} ({found[key] / base[key]:.2f}×)"
            for key, unit in (("records_per_s", "records/s"), ("records_per_cpu_s", "records per CPU s"))
        ]
        print(f"{name:<24}{''.join(cells)}")


if __name__ == "__main__":
    main()
