"""What a broker that was asked nothing has not imported: of a test's first broker nearly all the time is imports."""

from __future__ import annotations

import json
import subprocess
import sys

STARTED = """
import json, sys
from headrace.testing import EmbeddedBroker
with EmbeddedBroker(topics={"orders": 1}) as broker:
    broker.produce("orders", ["one"])
    print(json.dumps(sorted(sys.modules)))
"""
# By the beginnings of their names. The first two lines: the rules, and the messages of all APIs.
NOT_YET = (
    *("headrace.coordinator." + each for each in ("assignors", "classic", "consumer", "offsets", "records")),
    *(
        "headrace.coordinator." + each
        for each in ("shard", "streams", "result", "transactions.shard", "transactions.transaction_log")
    ),
    *("headrace.protocol." + each for each in ("message_classes", "sasl.mechanisms")),
    *("headrace.broker.coordinators." + each for each in ("coordinator_logs",)),
    *("headrace.broker.security." + each for each in ("secured_listener", "sasl_authenticator", "certificate_name")),
    "headrace.storage.log_cleaning",
    *("headrace.cli", "headrace.client", "headrace.simulator", "headrace.spark", "headrace.assignors"),
    *("pyarrow", "numpy", "numba", "pandas", "pyspark", "lmdb", "click", "rich", "hypothesis", "pytest"),
)
HANDLERS = "headrace.broker.handlers."


def test_unused_features_are_not_imported() -> None:
    told = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=120, check=True)
    imported = json.loads(told.stdout)
    too_early = [
        name
        for name in imported
        if f"{name}.".startswith(tuple(f"{each}." for each in NOT_YET))
        or (name.startswith("kio.schema.") and name.endswith((".request", ".response")))
        or (name.startswith(HANDLERS) and name != f"{HANDLERS}produce")  # the short way of Produce has its answers
    ]
    assert too_early == []
    assert "headrace.broker.server" in imported
