"""How often a handler is tried, and what becomes of records that it fails on. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from headrace.checked_api import checked_api
from headrace.errors import ConfigError

__all__ = ["DeadLetterTopic", "FailurePolicy", "Retry"]


@checked_api()
@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """`attempts` in all; the first pause in seconds, doubled each time up to `max_delay`, with up to a fifth less.

    `on`: which exceptions are worth another attempt. A worker process that died, and a handler that was stopped for
    its time, are.
    """

    attempts: int = 3
    first_delay: float = 0.2
    max_delay: float = 60.0
    on: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_delay < 0 or self.max_delay < self.first_delay:
            raise ConfigError(
                "bad-value",
                f"{self!r} cannot be: at least one attempt, and pauses from 0 seconds up",
                "give attempts >= 1, first_delay >= 0, max_delay >= first_delay",
            )

    def delay_ms(self, attempt: int, chance: float) -> int:
        """The pause behind this attempt (1 is the first); `chance` in [0, 1)."""
        pause = min(self.first_delay * float(2 ** min(attempt - 1, 40)), self.max_delay)
        return round(pause * 1000 * (1 - chance / 5))


@runtime_checkable
class DeadLetterTopic(Protocol):
    """`DeadLetter("orders.failed")`: the record goes, unchanged and with headers that say why, to this topic."""

    @property
    def topic(self) -> str: ...


FailurePolicy = Literal["stop", "skip"] | DeadLetterTopic
