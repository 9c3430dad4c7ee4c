"""Settings of client metrics subscriptions (resource type CLIENT_METRICS, KIP-714). Pure.

Names, defaults, bounds and messages are Kafka's (`ClientMetricsConfigs`). A pattern in `match` is RE2 and matches the
whole text, as Java's `matches` does; Kafka compiles it with java.util.regex, whose backtracking would let a client's
own name hold up the broker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from headrace.errors import ConfigError
from headrace.protocol.error_codes import ErrorCode
from headrace.settings import Setting, list_of, parse_value

if TYPE_CHECKING:
    from headrace.coordinator.re2_matcher import LinearPattern

__all__ = [
    "ALL_METRICS",
    "CLIENT_METRICS_SETTINGS",
    "CLIENT_METRICS_TOPIC",
    "ClientMetricsSubscription",
    "SubscriptionInvalid",
]

# An ordinary topic and not an internal one: streams groups may not read internal topics, as in Kafka, and this one is
# made to be read. A user may create it beforehand, with other partitions and settings.
CLIENT_METRICS_TOPIC = "__headrace_client_metrics"
ALL_METRICS = "*"
_SHORTEST_MS, _LONGEST_MS = 100, 3_600_000

CLIENT_METRICS_SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        setting.name: setting
        for setting in (
            Setting(
                name="interval.ms", kind="int", default=300_000, documentation="Metrics push interval in milliseconds"
            ),
            Setting(name="match", kind="list", default="", documentation="Client match criteria"),
            Setting(name="metrics", kind="list", default="", documentation="Telemetry metric name prefix list"),
        )
    }
)
CLIENT_ATTRIBUTES = frozenset(
    {
        "client_instance_id",
        "client_id",
        "client_software_name",
        "client_software_version",
        "client_source_address",
        "client_source_port",
    }
)


class SubscriptionInvalid(Exception):
    """The settings of a subscription are refused."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsSubscription:
    """One subscription.

    Attributes:
        metrics: prefixes of metric names; `*` stands for all.
        interval_ms: push interval.
        patterns: attribute of a client → pattern for its whole value. Empty: every client.
    """

    metrics: tuple[str, ...]
    interval_ms: int
    patterns: Mapping[str, LinearPattern]

    @classmethod
    def from_settings(cls, name: str, settings: Mapping[str, str]) -> ClientMetricsSubscription:
        """Check and read the settings of one subscription. Raises SubscriptionInvalid, in Kafka's order and words."""
        if not name:
            raise SubscriptionInvalid(ErrorCode.invalid_request, "Subscription name can't be empty")
        for key in settings:
            if key not in CLIENT_METRICS_SETTINGS:
                raise SubscriptionInvalid(ErrorCode.invalid_request, f"Unknown client metrics configuration: {key}")
        try:
            values = {
                key: setting.default if key not in settings else parse_value(setting, settings[key])
                for key, setting in CLIENT_METRICS_SETTINGS.items()
            }
        except ConfigError as error:
            raise SubscriptionInvalid(ErrorCode.invalid_config, error.message) from None
        interval_ms = int(values["interval.ms"] or 0)
        if not _SHORTEST_MS <= interval_ms <= _LONGEST_MS:
            raise SubscriptionInvalid(
                ErrorCode.invalid_request,
                f"Invalid value {interval_ms} for interval.ms, interval must be between 100 and 3600000 (1 hour)",
            )
        return cls(
            metrics=tuple(list_of(str(values["metrics"]))),
            interval_ms=interval_ms,
            patterns=_patterns(list_of(str(values["match"]))),
        )

    def matches(self, attributes: Mapping[str, str]) -> bool:
        """Whether a client with these attributes is subscribed."""
        return all(pattern.matches(attributes.get(name, "")) for name, pattern in self.patterns.items())


def _patterns(parts: list[str]) -> Mapping[str, LinearPattern]:
    # Imported with the first pattern: this table is part of every start.
    from headrace.coordinator.re2_matcher import BadPattern, LinearPattern

    patterns: dict[str, LinearPattern] = {}
    for part in parts:
        name, *values = (piece.strip() for piece in part.split("="))
        # As Kafka, which splits at each sign: a pattern cannot contain one.
        if len(values) != 1 or name not in CLIENT_ATTRIBUTES:
            raise SubscriptionInvalid(ErrorCode.invalid_config, f"Illegal client matching pattern: {part}")
        try:
            patterns[name] = LinearPattern(values[0])
        except BadPattern as error:
            raise SubscriptionInvalid(
                ErrorCode.invalid_config, f"Illegal client matching pattern: {part} ({error})"
            ) from None
    return patterns
