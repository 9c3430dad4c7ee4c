"""Rules of client metrics (KIP-714): client instances, their subscriptions, push intervals, refusals.

The rules are those of Kafka's `ClientMetricsManager`; time and new ids are arguments. Clients ask for their
subscription (GetTelemetrySubscriptions), push at its interval (PushTelemetry), and ask again when it has changed. An
instance lives in memory only: after a restart a client's next push has an unknown subscription, and it asks again.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import google_crc32c

from headrace.broker.config.client_metrics_settings import (
    ALL_METRICS,
    CLIENT_METRICS_SETTINGS,
    ClientMetricsSubscription,
    SubscriptionInvalid,
)
from headrace.protocol.compression import CODECS
from headrace.protocol.error_codes import ErrorCode
from headrace.storage.checkpoint_files import format_topic_id

__all__ = ["MOST_INSTANCES", "ClientInstance", "ClientMetrics", "Push", "TelemetryRefused"]

# Kafka's CACHE_MAX_SIZE: 16,384 clients of a broker. The one that was silent for longest is forgotten first.
MOST_INSTANCES = 16_384
_SHORTEST_EXPIRY_MS, _EXPIRY_INTERVALS = 60_000, 3
# Uuid.RESERVED of Kafka; kio reads the zero id as None.
_RESERVED = (None, uuid.UUID(int=0), uuid.UUID(int=1))
_FORGIVEN = (ErrorCode.unknown_subscription_id, ErrorCode.unsupported_compression_type)
_NEVER = -(2**62)


class TelemetryRefused(Exception):
    """A request is refused with this code."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    """The checked fields of PushTelemetry. `size` is that of the metrics as they were sent."""

    instance_id: uuid.UUID | None
    subscription_id: int
    is_terminating: bool
    compression: int
    size: int


@dataclass(slots=True, kw_only=True)
class ClientInstance:
    """Mutable: one client. `metrics` empty: nothing is subscribed, and nothing that it pushes is kept."""

    instance_id: uuid.UUID
    attributes: Mapping[str, str]
    metrics: tuple[str, ...]
    interval_ms: int
    subscription_id: int
    subscriptions_version: int
    last_seen_ms: int
    last_get_ms: int = _NEVER
    last_push_ms: int = _NEVER
    is_terminating: bool = False
    last_error: ErrorCode = field(default=ErrorCode.none)

    def accepts_get(self, now_ms: int) -> bool:
        """Whether the push interval has passed since the last request; if so, note this one."""
        if now_ms - max(self.last_get_ms, self.last_push_ms) < self.interval_ms:
            return False
        self.last_get_ms = now_ms
        return True

    def accepts_push(self, now_ms: int) -> bool:
        """Whether the interval has passed, or the client has just got its subscription; if so, note this push."""
        # The first push after a subscription comes after a part of the interval, chosen by chance: otherwise all
        # clients of a restarted broker would push at the same moment.
        if self.last_get_ms <= self.last_push_ms and now_ms - self.last_push_ms < self.interval_ms:
            return False
        self.last_push_ms = now_ms
        return True


class ClientMetrics:
    """Mutable: the instances of a broker. Belongs to the broker's event loop."""

    def __init__(self, subscriptions: Callable[[], Mapping[str, Mapping[str, str]]]) -> None:
        """`subscriptions` returns name → settings; another mapping object means that they have changed."""
        self._settings_of = subscriptions
        self._settings: Mapping[str, Mapping[str, str]] = {}
        self._subscriptions: tuple[ClientMetricsSubscription, ...] = ()
        self._version = 0
        self._instances: OrderedDict[uuid.UUID, ClientInstance] = OrderedDict()

    def __len__(self) -> int:
        return len(self._instances)

    def get_subscription(
        self, instance_id: uuid.UUID | None, attributes: Mapping[str, str], *, new_id: uuid.UUID, now_ms: int
    ) -> ClientInstance:
        """Return the client's instance with its subscription; `new_id` names a client that has no id yet.

        Raises TelemetryRefused: the request came before the push interval has passed.
        """
        instance = self._instance(instance_id or new_id, attributes, now_ms)
        # A client that was refused for its subscription or its codec has to ask at once.
        if not instance.accepts_get(now_ms) and instance.last_error not in _FORGIVEN:
            raise TelemetryRefused(ErrorCode.throttling_quota_exceeded, _too_early(instance))
        instance.last_error = ErrorCode.none
        return instance

    def accept_push(self, push: Push, attributes: Mapping[str, str], *, max_bytes: int, now_ms: int) -> ClientInstance:
        """Return the instance whose metrics may be taken. Raises TelemetryRefused."""
        if push.instance_id is None or push.instance_id in _RESERVED:
            raise TelemetryRefused(ErrorCode.invalid_request, "The client instance id is missing or reserved.")
        instance = self._instance(push.instance_id, attributes, now_ms)
        try:
            _check_push(instance, push, max_bytes, now_ms)
        except TelemetryRefused as refused:
            instance.last_error = refused.code
            raise
        finally:
            # Also when it is refused, as in Kafka: a client that announces its end pushes no more.
            instance.is_terminating = push.is_terminating
        instance.last_error = ErrorCode.none
        return instance

    def _instance(self, instance_id: uuid.UUID, attributes: Mapping[str, str], now_ms: int) -> ClientInstance:
        self._take_subscriptions()
        instance = self._instances.get(instance_id)
        if instance is not None:
            expiry_ms = max(_SHORTEST_EXPIRY_MS, instance.interval_ms * _EXPIRY_INTERVALS)
            if now_ms - instance.last_seen_ms >= expiry_ms:
                instance = None
        if instance is None:
            instance = self._evaluate(instance_id, attributes, now_ms)
        elif instance.subscriptions_version < self._version:
            # As in Kafka, a changed subscription makes a new instance: its next request is not too early.
            instance = self._evaluate(instance_id, instance.attributes, now_ms)
        instance.last_seen_ms = now_ms
        self._instances[instance_id] = instance
        self._instances.move_to_end(instance_id)
        if len(self._instances) > MOST_INSTANCES:
            self._instances.popitem(last=False)
        return instance

    def _take_subscriptions(self) -> None:
        settings = self._settings_of()
        if settings is not self._settings:
            self._settings = settings
            self._subscriptions = tuple(_readable(settings))
            self._version += 1

    def _evaluate(self, instance_id: uuid.UUID, attributes: Mapping[str, str], now_ms: int) -> ClientInstance:
        attributes = {**attributes, "client_instance_id": format_topic_id(instance_id)}
        matching = [each for each in self._subscriptions if each.matches(attributes)]
        names = sorted({name for each in matching for name in each.metrics})
        # `*` asks for all, so other names add nothing.
        metrics = (ALL_METRICS,) if ALL_METRICS in names else tuple(names)
        default = int(CLIENT_METRICS_SETTINGS["interval.ms"].default or 0)
        interval_ms = min([default, *(each.interval_ms for each in matching)])
        return ClientInstance(
            instance_id=instance_id,
            attributes=attributes,
            metrics=metrics,
            interval_ms=interval_ms,
            subscription_id=_subscription_id(instance_id, metrics, interval_ms),
            subscriptions_version=self._version,
            last_seen_ms=now_ms,
        )


def _check_push(instance: ClientInstance, push: Push, max_bytes: int, now_ms: int) -> None:
    # Kafka's order (`validatePushRequest`).
    if instance.is_terminating:
        raise TelemetryRefused(
            ErrorCode.invalid_request, "The previous push was the terminating one; no other is accepted after it."
        )
    if not instance.accepts_push(now_ms) and not push.is_terminating:
        raise TelemetryRefused(ErrorCode.throttling_quota_exceeded, _too_early(instance))
    if push.subscription_id != instance.subscription_id:
        raise TelemetryRefused(ErrorCode.unknown_subscription_id, f"Unknown subscription id {push.subscription_id}.")
    if not 0 <= push.compression < len(CODECS):
        raise TelemetryRefused(ErrorCode.unsupported_compression_type, f"Unknown compression type {push.compression}.")
    if push.size > max_bytes:
        raise TelemetryRefused(
            ErrorCode.telemetry_too_large,
            f"{push.size} bytes of metrics are more than telemetry.max.bytes={max_bytes}.",
        )


def _readable(settings: Mapping[str, Mapping[str, str]]) -> list[ClientMetricsSubscription]:
    subscriptions = []
    for name, values in settings.items():
        # Settings were checked when they were stored, perhaps by another version. One that cannot be read subscribes to
        # nothing; DescribeConfigs still shows it.
        try:
            subscriptions.append(ClientMetricsSubscription.from_settings(name, values))
        except SubscriptionInvalid:
            continue
    return subscriptions


def _subscription_id(instance_id: uuid.UUID, metrics: tuple[str, ...], interval_ms: int) -> int:
    """Return Kafka's id of a subscription set: the CRC-32C of its text, XORed with Java's hash of the instance id."""
    crc = int(google_crc32c.value(f"[{', '.join(metrics)}]{interval_ms}".encode()))
    halves = (instance_id.int >> 64) ^ (instance_id.int & 0xFFFF_FFFF_FFFF_FFFF)
    number = crc ^ ((halves >> 32) ^ halves) & 0xFFFF_FFFF
    return number - (1 << 32) if number >> 31 else number


def _too_early(instance: ClientInstance) -> str:
    return f"The request came before the push interval of {instance.interval_ms} ms has passed."
