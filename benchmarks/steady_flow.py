"""A steady flow of records that carry the time they were due, and how old they are when a consumer sees their results.

    python benchmarks/steady_flow.py send BOOTSTRAP TOPIC --rate 10000 --keys 100000
    python benchmarks/steady_flow.py read BOOTSTRAP TOPIC

Two processes of their own, so that neither waits for what is measured. A record, about 100 bytes:
`{"key": "k0000123", "other": "o0000045", "sent": 1763762815123456789, "pad": "xx…"}`, its key the record's key. `sent`
is the moment at which the record was *due* by the rate, in nanoseconds since the epoch, however late it was written: a
load generator that is held up does not hide it. What is due goes out every few milliseconds, which is in the figures.

The reader (committed records, our consumer, Arrow batches) looks at each row of the sink for `"sent": N` and takes the
clock when its poll returned. Both print `ready`, wait for a line `{"from_ns": N, "until_ns": N}` and answer with one:
the sender sends from then until then, the reader counts the rows that were due from then until then.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["FlowProcess"]

TICK_S, PAD = 0.005, "x" * 12
SETTLED_S, PATIENCE_S = 5.0, 45.0
SENT = r'"sent": ?(?P<sent>\d+)'
PERCENTILES = (50, 99, 100)


class FlowProcess:
    """`send` or `read`, ready to be told when. A context manager: the process does not outlive it."""

    def __init__(self, role: str, bootstrap: str, topic: str, **given: int) -> None:
        options = [text for name, value in given.items() for text in (f"--{name}", str(value))]
        self._process = subprocess.Popen(
            [sys.executable, __file__, role, bootstrap, topic, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        if self._line() != "ready":
            raise SystemExit("the process of the flow did not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def tell(self, *, from_ns: int, until_ns: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"from_ns": from_ns, "until_ns": until_ns}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Waits for its end. `send`: records `sent`, the longest send; `read`: `rows`, p50, p99 and max in ms."""
        found: dict[str, Any] = json.loads(self._line() or '{"failed": true}')
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def told() -> tuple[int, int]:
    """Says that all is warm; the times."""
    print("ready", flush=True)
    times = json.loads(sys.stdin.readline())
    return times["from_ns"], times["until_ns"]


def send(options: argparse.Namespace) -> dict[str, Any]:
    from headrace.client.network_client import NetworkClient
    from headrace.client.producer import Producer
    from headrace.protocol.arrow_batches import warm_up

    warm_up()
    random = np.random.default_rng(1)
    every_ns, sent, longest_ns = 1_000_000_000 // options.rate, 0, 0
    with NetworkClient(options.bootstrap) as client:
        producer = Producer(client)
        client.known_topics([options.topic])
        from_ns, until_ns = told()
        spent = time.process_time()
        _wait_until(from_ns)
        while (now := time.time_ns()) < until_ns:
            due = (now - from_ns) // every_ns
            drawn = random.integers(0, options.keys, (due - sent, 2)).tolist()
            times = range(from_ns + sent * every_ns, from_ns + due * every_ns, every_ns)
            names = [f"k{key:07}" for key, _ in drawn]
            values = [
                f'{{"key": "{name}", "other": "o{other:07}", "sent": {at}, "pad": "{PAD}"}}'
                for name, (_, other), at in zip(names, drawn, times, strict=True)
            ]
            producer.send(options.topic, None, pa.array(names).cast(pa.binary()), pa.array(values).cast(pa.binary()))
            producer.flush()
            sent, longest_ns = due, max(longest_ns, time.time_ns() - now)
            _wait_until(now + int(TICK_S * 1e9))
    return {"sent": sent, "longest_send_ms": round(longest_ns / 1e6, 1), "cpu": round(time.process_time() - spent, 1)}


def _wait_until(at_ns: int) -> None:
    if (left := at_ns - time.time_ns()) > 0:
        time.sleep(left / 1e9)


def read(options: argparse.Namespace) -> dict[str, Any]:
    """Ends when a row has come for every record of the window, or none for five seconds, or after 45 seconds."""
    from headrace import Consumer
    from headrace.protocol.arrow_batches import warm_up

    warm_up()
    found: list[Any] = []
    with Consumer(bootstrap_servers=options.bootstrap, config={"max.poll.records": 1_000_000}) as consumer:
        consumer.assign(consumer.partitions_for(options.topic))
        consumer.seek_to_end()
        consumer.poll(0.1)
        from_ns, until_ns = told()
        spent = time.process_time()
        last = until = until_ns / 1e9
        wanted, rows = options.rate * (until_ns - from_ns) // 1_000_000_000, 0
        while time.time() < until or (rows < wanted and time.time() < until + PATIENCE_S):
            if rows and time.time() > max(until, last) + SETTLED_S:
                break
            batch = consumer.poll(0.2)
            taken = time.time_ns()
            if batch.num_rows:
                texts = batch.column("value").cast(pa.string())
                sent = pc.struct_field(pc.extract_regex(texts, SENT), "sent").cast(pa.int64()).to_numpy()
                sent = sent[(sent >= from_ns) & (sent < until_ns)]
                if len(sent):
                    found.append((taken - sent) / 1e6)
                    rows += len(sent)
                    last = taken / 1e9
    if not found:
        return {"rows": 0}
    ages = np.concatenate(found)
    p50, p99, longest = (round(float(each), 1) for each in np.percentile(ages, PERCENTILES))
    return {
        "rows": rows,
        "p50": p50,
        "p99": p99,
        "max": longest,
        "behind_s": round(max(0.0, last - until), 2),
        "cpu": round(time.process_time() - spent, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("send", "read"))
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=100_000)
    options = parser.parse_args()
    print(json.dumps({"send": send, "read": read}[options.role](options)), flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent.parent))
    main()
