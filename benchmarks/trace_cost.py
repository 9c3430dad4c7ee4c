"""CPU cost of traces in an application: the same micro-batches with `headrace.tracing` off and on, alternating.

    python benchmarks/trace_cost.py [--records 200000] [--share 0.0001] [--read values] [--rounds 15] [--json]

A topic of records of 100 bytes is copied without Spark SQL between fetch and produce, so that the share of the traces
is as large as it can be: with SQL, state or a broker in the sum it is smaller. `--share` of the records carry a
`traceparent`, each of a trace of its own. Two applications process the same records in this process, on topics in
memory; a turn of one follows a turn of the other. They read all of a record, headers included, so
that headers are decoded with traces off, too; with `--read values` only values, as strings.

Spans are made, encoded and sent to a receiver in a process of its own; what that costs here is in the sum of the
application with traces: the SDK sends every five seconds, which is once for `--export-every` micro-batches. Printed:
the medians, their difference, and the ratio, in CPU seconds of this process, all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np
import pyarrow as pa

PARTITIONS = 4
RECEIVER = """
import sys
from tests.harness.otlp_receiver import otlp_receiver
with otlp_receiver() as receiver:
    print(receiver.endpoint, flush=True)
    sys.stdin.read()
    print(len(receiver.spans()), flush=True)
"""


def records_of(count: int, share: float, seed: int) -> tuple[pa.Array, pa.Array | None]:
    """Return values of 100 bytes, and headers of which `share` have a trace context."""
    from headrace.protocol.trace_context import headers_with_contexts

    chosen = np.random.default_rng(seed)
    values = pa.array([b"%0100d" % number for number in range(count)], pa.binary())
    contexts: list[bytes | None] = [None] * count
    for row in chosen.choice(count, round(count * share), replace=False).tolist():
        contexts[row] = b"00-%032x-%016x-01" % (int.from_bytes(chosen.bytes(15)) + 1, row + 1)
    return values, headers_with_contexts(pa.array(contexts, pa.binary()))


class Side:
    """One application on topics in memory. Mutable: its turns."""

    def __init__(self, name: str, tracing: str, read: str) -> None:
        from headrace import StreamsApp
        from headrace.testing import TopologyTest

        app = StreamsApp(name, bootstrap_servers="127.0.0.1:1", config={"headrace.tracing": tracing})
        form = "raw" if read == "columns" else "string"
        app.stream("flights", value=form).to_topic("copies", value=form)
        self._test = TopologyTest(app, partitions={"flights": PARTITIONS, "copies": PARTITIONS})
        self.turns: list[float] = []
        self._began: float | None = None  # of the turn under way

    def export(self, spans: Any) -> None:
        """Export spans as a started application does."""
        for subtopology in self._test._instance.subtopologies.values():
            subtopology._executor._spans = spans

    def run(self, values: pa.Array, headers: pa.Array | None) -> None:
        from headrace.spark.runtime.memory_topics import MemoryWriter

        MemoryWriter(self._test._topics).send("flights", None, None, values, headers=headers)
        self._began = time.process_time()
        self._test.run()
        self.turns.append(time.process_time() - self._began)
        self._began = None

    def spent_s(self) -> float:
        """Return the CPU seconds of all turns, that under way included."""
        return sum(self.turns) + (0.0 if self._began is None else time.process_time() - self._began)

    def close(self) -> None:
        self._test.close()


def measure(options: argparse.Namespace) -> dict[str, Any]:
    receiver = subprocess.Popen(
        [sys.executable, "-c", RECEIVER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
    )
    assert receiver.stdout is not None
    os.environ["OTEL_BSP_SCHEDULE_DELAY"] = "3600000"  # exports are measured one by one
    os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] = receiver.stdout.readline().strip()
    from headrace.spark.runtime.span_exporter import SpanExporter

    sides = {"off": Side("off", "none", options.read), "on": Side("on", "opentelemetry", options.read)}
    # Behind the start of the session: PySpark forks for the JVM, and the SDK's thread does not survive a fork.
    # The limit of spans counts CPU seconds of this application, which no other process on the machine stretches.
    exporter = SpanExporter("trace-cost", now_s=sides["on"].spent_s)
    sides["on"].export(exporter)
    exports: list[float] = []
    for turn in range(options.rounds + options.warm_ups):
        values, headers = records_of(options.records, options.share, turn)
        for name in ("off", "on") if turn % 2 else ("on", "off"):
            sides[name].run(values, headers)
        if turn % options.export_every == 0:
            started = time.process_time()
            exporter.flush()
            exports.append(time.process_time() - started)
    for side in sides.values():
        side.close()
    exporter.close()
    spans = int(receiver.communicate("", timeout=30)[0])  # of all rounds
    # The first ones load kernels, and spend the spans that an application saves up while it makes none.
    turns = {name: side.turns[options.warm_ups :] for name, side in sides.items()}
    exports = exports[-(options.rounds // options.export_every) :]
    export = statistics.mean(exports) / options.export_every
    turns["on"] = [spent + export for spent in turns["on"]]
    median = {name: statistics.median(of) for name, of in turns.items()}
    pairs = [on / off for on, off in zip(turns["on"], turns["off"], strict=True)]
    return {
        "benchmark": "trace_cost",
        **vars(options),
        "load": os.getloadavg()[0],
        "cpu_seconds": {name: round(value, 4) for name, value in median.items()},
        "least_cpu_seconds": {name: round(min(of), 4) for name, of in turns.items()},
        "export_cpu_seconds_a_micro_batch": round(export, 5),
        "spans_a_micro_batch": round(spans / (options.rounds + options.warm_ups), 1),
        "ratio": round(statistics.median(pairs), 4),
        "ratio_of_least": round(min(turns["on"]) / min(turns["off"]), 4),
        "turns": {name: [round(value, 4) for value in of] for name, of in turns.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=200_000, help="of a micro-batch")
    parser.add_argument("--share", type=float, default=0.0001, help="of records with a sampled trace context")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--warm-ups", type=int, default=10, help="rounds before those that count")
    parser.add_argument(
        "--read", choices=["columns", "values"], default="columns", help="of a record: all, or its value"
    )
    parser.add_argument("--export-every", type=int, default=3, help="micro-batches for one export of spans")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    facts = measure(options)
    if options.json:
        print(json.dumps(facts))
        return
    off, on = facts["cpu_seconds"]["off"], facts["cpu_seconds"]["on"]
    print(
        f"{options.records:,} records, {options.share:.4%} sampled, {facts['spans_a_micro_batch']} spans a micro-batch"
    )
    print(f"off {off:.4f} CPU s, on {on:.4f} CPU s: {1000 * (on - off):+.2f} ms, ratio {facts['ratio']:.4f}")
    print(f"least: ratio {facts['ratio_of_least']:.4f}")


if __name__ == "__main__":
    main()
