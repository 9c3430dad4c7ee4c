"""Metrics as text, read by a strict parser, and the sizes of a broker."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.broker.monitoring.broker_metrics import BrokerMetrics
from headrace.broker.monitoring.server_metrics import MOST_PARTITIONS, LogSize
from headrace.metrics.prometheus_text import Family
from headrace.protocol.api_keys import ApiKey

GROUPS = "kafka_server_group_coordinator_metrics_"


_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\\\|\\"|\\n)*"'


_LINE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{{({_LABEL}(?:,{_LABEL})*)\}})? (-?[0-9.]+(?:e[+-]?[0-9]+)?)")


class Sizes:
    """A broker with two stable streams groups and one that waits for its topics."""

    def group_counts(self) -> dict[tuple[str, str], int]:
        return {("streams", "Stable"): 2, ("streams", "NotReady"): 1, ("classic", "Empty"): 4}

    def partition_counts(self) -> dict[str, int]:
        return {"active": 49, "failed": 1}

    def events_waiting(self) -> int:
        return 3

    is_loading = False
    is_stopping = False

    def connections_by_listener(self) -> dict[str, int]:
        return {"PLAINTEXT": 5}

    def log_sizes(self) -> list[LogSize]:
        return [
            LogSize(topic="t", partition=n, size_bytes=n, segments=1, log_start_offset=0, log_end_offset=n)
            for n in range(MOST_PARTITIONS + 5)
        ]

    def parked_fetches(self) -> int:
        return 2

    def data_directory(self) -> Path:
        return Path(__file__).parent

    def failed_logs(self) -> list[str]:
        return ["t-1"]


def parsed(text: str) -> dict[str, float]:
    """Samples of a text in exposition format 0.0.4; refuses what the format does not allow."""
    kinds: dict[str, str] = {}
    samples: dict[str, float] = {}
    helped, current = set(), ""
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split(" ", 3)[2]
            assert current not in helped, f"{current} is told twice"
            helped.add(current)
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name == current
            assert kind in ("counter", "gauge")
            kinds[name] = kind
        else:
            found = _LINE.fullmatch(line)
            assert found is not None, f"not a sample: {line}"
            assert found[1] == current
            assert current in kinds
            name = line.rpartition(" ")[0]
            assert name not in samples, f"{name} is told twice"
            samples[name] = float(found[3])
    return samples


def all_families() -> list[Family]:
    metrics = BrokerMetrics()
    metrics.requests.record_response(ApiKey.STREAMS_GROUP_HEARTBEAT, 0, object(), seconds=0.002)
    metrics.server.connection_opened("PLAINTEXT")
    metrics.server.connection_closed("PLAINTEXT", "idle")
    metrics.server.record_login("PLAINTEXT", "failed-authentication")
    metrics.server.record_flush(0.01, False)
    return list(metrics.families(Sizes()))
