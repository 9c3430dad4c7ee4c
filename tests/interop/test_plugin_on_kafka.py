"""`pytest --kafka=…` on Apache Kafka: examples of docs/how-to/testing.md run; what needs our broker is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.kafka_broker import KafkaBroker

pytestmark = [pytest.mark.interop, pytest.mark.foreign]

EXAMPLES = Path(__file__).parents[2] / "examples" / "testing"


def test_the_examples_on_apache_kafka(kafka: KafkaBroker, tmp_path: Path) -> None:
    for library in ("aiokafka", "confluent_kafka", "kafka_python"):
        shutil.copy(EXAMPLES / f"test_with_{library}.py", tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", f"--kafka={kafka.bootstrap_servers}"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed, 4 skipped" in done.stdout
    assert "this test kills the broker, which needs a broker of its own" in done.stdout
