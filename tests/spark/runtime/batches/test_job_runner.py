"""Spark runs a slot a second time: refused, because the first attempt may still write; the batch is planned anew."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.longer import longer

pytestmark = [
    pytest.mark.spark,
    longer,
]


def test_second_attempts_are_refused_and_nothing_counts_twice(broker, flights, tmp_path):
    rows = [{"origin": "EWR", "n": str(n)} for n in range(200)]
    rows[120]["n"] = "many"
    broker.produce("flights", [json.dumps(row) for row in rows], partition=0)
    program = Path(__file__).with_name("second_attempts.py")
    ended = subprocess.run(
        [sys.executable, str(program), broker.bootstrap_servers, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout) == {"killed": True, "skipped": 1}
    assert "Spark ran slot" in ended.stderr
    [row] = flights.newest(broker, "by-origin").values()
    assert row == {"origin": "EWR", "flights": 199, "total": sum(range(200)) - 120}
