"""Random schemas and rows: our Avro and Spark's own agree on every value and on every byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.interop.kafka_jars import skip_without_kafka, spark_avro

ROOT = Path(__file__).parents[3]
SCHEMAS, SEED = ("400", "11") if os.environ.get("HEADRACE_LONG") else ("8", "7")


@pytest.mark.spark
@pytest.mark.interop
def test_random_schemas_agree_with_sparks_avro() -> None:
    with skip_without_kafka():
        jar = spark_avro()
    command = [sys.executable, "-m", "tests.spark.formats.avro_beside_spark", str(jar), SCHEMAS, SEED]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=1800)
    assert told.returncode == 0, told.stdout[-4000:] + told.stderr[-4000:]
    assert f"{SCHEMAS} schemas of seed {SEED}: 0 differences" in told.stdout
