"""Every error a user of Headrace can meet, below all rooms so that each may raise them.

An error has a stable `code` (`headrace explain CODE` prints its page), one complete sentence, a `fix` that says what
to do, and `facts` for programs. Errors that are standard ones as well inherit both.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BrokerError",
    "CannotConnect",
    "ConfigError",
    "Fenced",
    "HeadraceError",
    "MaxPollExceeded",
    "RecordError",
    "SinkError",
    "StateError",
    "TopologyError",
    "UserCodeError",
]


class HeadraceError(Exception):
    """The root of all our errors. `str()` is one complete sentence."""

    def __init__(self, code: str, message: str, fix: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix
        self.facts: dict[str, Any] = facts

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Python worker to driver), keyword facts included.
        return (_rebuild, (type(self), self.code, self.message, self.fix, self.facts))

    def render(self) -> str:
        """The form the command line prints: `error[code]: what happened`, then `where`, `why`, `fix`."""
        said = (("where", self.facts.get("where")), ("why", self.facts.get("why")), ("fix", self.fix))
        return "\n".join(
            [f"error[{self.code}]: {self.message}", *(f"{label:<6} {text}" for label, text in said if text)]
        )


def _rebuild(kind: type[HeadraceError], code: str, message: str, fix: str, facts: dict[str, Any]) -> HeadraceError:
    return kind(code, message, fix, **facts)


class ConfigError(HeadraceError, ValueError):
    """unknown-setting, bad-value, java-missing, extra-missing, port-taken."""


class TopologyError(HeadraceError, ValueError):
    """unresolved-column, needs-shuffle, aggregate-not-mergeable, state-name-taken, not-supported-here, schema-missing.

    `facts["where"]` is the file and line of the user's call.
    """


class CannotConnect(HeadraceError, ConnectionError):
    """broker-unreachable, tls-failed, authentication-failed."""


class BrokerError(HeadraceError):
    """A broker refused: topic-missing, group-kind, streams-protocol-off, topology-differs, not-ready, not-authorized,
    not-stored.

    Where an answer of the broker stands behind it, `facts` holds `kafka_code`, `kafka_name`, `retriable` and `api`.
    """

    @property
    def kafka_code(self) -> int:
        return int(self.facts.get("kafka_code", -1))

    @property
    def kafka_name(self) -> str:
        return str(self.facts.get("kafka_name", ""))

    @property
    def retriable(self) -> bool:
        return bool(self.facts.get("retriable", False))


class Fenced(BrokerError):
    """member-fenced, instance-fenced, producer-fenced: somebody else owns what we held."""


class MaxPollExceeded(BrokerError):
    """max-poll-exceeded: no micro-batch finished for `max.poll.interval.ms`, so the member left."""


class RecordError(HeadraceError, ValueError):
    """undecodable, undigestible, too-large: one record; `facts` holds topic, partition, offset, excerpt."""


class StateError(HeadraceError):
    """state-locked, -unusable, -of-another-group, -format, -corrupt, -schema-changed; disk-full."""


class SinkError(HeadraceError):
    """sink-failed, sink-undecided, disk-full: a table could not take what belongs into it; `facts` holds its name."""


class UserCodeError(HeadraceError):
    """user-code: the user's own function raised; the original is chained as `__cause__`."""
