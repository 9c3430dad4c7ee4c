"""Records as objects, also where Arrow is not installed."""

from __future__ import annotations

import subprocess
import sys

from tests.client.consumer.consumed_records import T1, Make


def test_one_record_in_full(make: Make) -> None:
    consumer = make()
    consumer.assign([T1])
    record = next(iter(consumer.records(timeout=10)))
    assert record == ("t", 1, 0, b"k0", b"v0", (("h", b"x"),), 0, 0)


def test_records_need_no_arrow() -> None:
    code = (
        "import sys, headrace; from headrace import Consumer; import headrace.client.consumer.record_collector;"
        "Consumer(bootstrap_servers='127.0.0.1:1').close();"
        "print([n for n in ('pyarrow', 'numpy', 'numba') if n in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert out.stdout.strip() == "[]"
