"""How many connections there may be, from one address, and how fast they may come; how much is held of half requests,
and of answers that no client reads.

`max.connections`, `max.connections.per.ip` with overrides, `max.connection.creation.rate`, the quota
`connection_creation_rate` of addresses. A connection that is too many is closed at once. Time is an argument.
"""

from __future__ import annotations

from headrace.broker.config.broker_configuration import BrokerConfiguration
from headrace.broker.requests.quotas import MOST_METERS, Rate

__all__ = ["ConnectionLimits"]


class ConnectionLimits:
    """Mutable: one broker's count."""

    def __init__(self, configuration: BrokerConfiguration) -> None:
        self._configuration = configuration
        self._by_address: dict[str, int] = {}
        self._total = 0
        self._rates: dict[str, Rate] = {}
        self.receiving_bytes = 0
        self.unsent_bytes = 0

    def admit(self, address: str, now_ms: float, rate_of_address: float | None) -> bool:
        """Whether one more from there may stay; it is counted then until `left`."""
        configuration = self._configuration
        there = self._by_address.get(address, 0)
        if self._total >= configuration.integer("max.connections") or there >= self._most(address):
            return False
        if self._too_fast("", configuration.integer("max.connection.creation.rate"), now_ms):
            return False
        if rate_of_address is not None and self._too_fast(address, rate_of_address, now_ms):
            return False
        self._by_address[address] = there + 1
        self._total += 1
        return True

    def left(self, address: str) -> None:
        self._total -= 1
        there = self._by_address[address] - 1
        if there:
            self._by_address[address] = there
        else:
            del self._by_address[address]

    def receiving(self, change: int) -> bool:
        """One connection holds so many bytes more (or less) of requests that are not whole yet; whether it may."""
        self.receiving_bytes += change
        return change <= 0 or self.receiving_bytes <= self._configuration.integer("headrace.receiving.max.bytes")

    def unsent(self, change: int) -> bool:
        """One connection's client has so many bytes more (or less) of answers not read yet; whether it may."""
        self.unsent_bytes += change
        return change <= 0 or self.unsent_bytes <= self._configuration.integer("headrace.unsent.max.bytes")

    def _most(self, address: str) -> int:
        for part in str(self._configuration.get("max.connections.per.ip.overrides") or "").split(","):
            host, _, number = part.strip().rpartition(":")
            if host == address and number.isdigit():
                return int(number)
        return self._configuration.integer("max.connections.per.ip")

    def _too_fast(self, whose: str, per_second: float, now_ms: float) -> bool:
        """Counts this one, unless it is refused."""
        if per_second >= 2**31 - 1:
            return False
        rate = self._rates.get(whose)
        if rate is None:
            if len(self._rates) >= MOST_METERS:
                self._rates.clear()
            windows = self._configuration.integer("quota.window.num")
            rate = self._rates[whose] = Rate(windows, self._configuration.integer("quota.window.size.seconds") * 1000)
        if rate.throttle_ms(per_second, now_ms) > 0:
            return True
        rate.record(1, now_ms)
        return False
