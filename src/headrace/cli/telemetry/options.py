"""Options of `headrace telemetry`, the metrics that it asks for, and the file of teams. Imports no Spark."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.broker.config.client_metrics_settings import CLIENT_METRICS_TOPIC

__all__ = ["BETWEEN_POLLS", "ENVIRONMENT", "LAG", "METRICS", "REBALANCES", "RECORDS", "TelemetryOptions", "read_teams"]

ENVIRONMENT = "HEADRACE_TELEMETRY"
_CONSUMER = "org.apache.kafka.consumer."
# Kafka's names (`ConsumerCoordinator`, `FetchMetricsManager`, `KafkaConsumerMetrics`), as KIP-714 spells them.
REBALANCES = f"{_CONSUMER}coordinator.rebalance.total"
RECORDS = f"{_CONSUMER}fetch.manager.records.consumed.total"
LAG = f"{_CONSUMER}fetch.manager.records.lag.max"
BETWEEN_POLLS = f"{_CONSUMER}time.between.poll.max"
METRICS = (REBALANCES, RECORDS, LAG, BETWEEN_POLLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryOptions:
    """Options of the command.

    Attributes:
        name: group of the application.
        window: length of a window, as Spark writes an interval.
        delay: how late a push may be, by the client's clock.
        storm: rebalances in an hour from which a group gets an alert.
        slow_poll_ms: longest time between two polls from which a member gets an alert.
        standstill_ms: standstill of a partition from which a group gets an alert; from the recorder.
        team_pattern: regular expression; its first group, found in a client id, is the client's team.
        teams: group → team, which comes before the pattern.
        metrics_topic: topic with the metrics of clients.
        groups_topic: topic of the table: one row for each window and group.
        alerts_topic: topic of the alerts.
        partitions: of the topics that it writes.
        history_topic: topic of a recorder of groups; "" reads none.
        rebalances_topic: topic of the recorder's rebalances and standstill: one row for each window and group.
    """

    name: str = "headrace-telemetry"
    window: str = "10 minutes"
    delay: str = "1 minute"
    storm: int = 30
    slow_poll_ms: int = 150_000
    standstill_ms: int = 60_000
    team_pattern: str = r"^([^.]+)\."
    teams: dict[str, str] = field(default_factory=dict)
    metrics_topic: str = CLIENT_METRICS_TOPIC
    groups_topic: str = "telemetry-groups"
    alerts_topic: str = "telemetry-alerts"
    partitions: int = 1
    history_topic: str = ""
    rebalances_topic: str = "telemetry-rebalances"

    def topics(self) -> tuple[str, ...]:
        """Return the topics that the application writes."""
        written = self.groups_topic, self.alerts_topic
        return (*written, self.rebalances_topic) if self.history_topic else written

    def to_json(self) -> str:
        """Return the options as an environment variable holds them."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TelemetryOptions:
        """Read what `to_json` returned."""
        return cls(**json.loads(text))


def read_teams(path: Path) -> dict[str, str]:
    """Read a CSV file with the columns `group` and `team`. Raises ValueError for other columns, OSError."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        if not {"group", "team"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} needs the columns group and team")
        return {row["group"]: row["team"] for row in rows}
