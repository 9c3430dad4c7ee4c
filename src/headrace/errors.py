"""Every error a user of Headrace can meet, below all packages so that each may raise them.

An error has a stable `code` (`headrace explain CODE` prints its page), one complete sentence, a `fix` that says what
to do, and `facts` for programs. Errors that are standard ones as well inherit both. `str()` is the sentence; code,
place, cause and fix are a note (PEP 678), so that a plain traceback, a notebook and a log show them too.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ArgumentError",
    "BrokerError",
    "CannotConnect",
    "ConfigError",
    "Fenced",
    "HeadraceError",
    "MaxPollExceeded",
    "MissingExtra",
    "RecordError",
    "SinkError",
    "StateError",
    "TopologyError",
    "UnboundedStateWarning",
    "UnknownName",
    "UserCodeError",
]


class HeadraceError(Exception):
    """The root of all our errors. `str()` is one complete sentence; tracebacks show code, cause and fix below it."""

    def __init__(self, code: str, message: str, fix: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.fix = fix
        self.facts: dict[str, Any] = facts
        self._note = self._describe()
        self.add_note(self._note)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process boundaries (Python worker to driver), keyword facts and foreign notes included.
        foreign = [note for note in self.__notes__ if note != self._note]
        return (_rebuild, (type(self), self.code, self.message, self.fix, self.facts, foreign))

    def render(self) -> str:
        """The form the command line prints: `error[code]: what happened`, then `where`, `why`, `fix`."""
        return "\n".join([f"error[{self.code}]: {self.message}", *self._labelled()])

    def locate(self, where: str) -> None:
        """Set `facts["where"]`, the user's file and line, in an error that has none; the note shows it."""
        if self.facts.get("where"):
            return
        self.facts["where"] = where
        known = self._note
        self._note = self._describe()
        self.__notes__ = [self._note if note == known else note for note in self.__notes__]

    def _describe(self) -> str:
        lines = [f"code   {self.code}  (headrace explain {self.code})", *self._labelled()]
        # Indented: `X: text` at the start of a line would look like the end of a traceback to its parsers.
        return "\n".join("  " + line for text in lines for line in text.splitlines())

    def _labelled(self) -> list[str]:
        labels = (("where", self.facts.get("where")), ("why", self.facts.get("why")), ("fix", self.fix))
        return [f"{label:<6} {text}" for label, text in labels if text]


def _rebuild(
    kind: type[HeadraceError], code: str, message: str, fix: str, facts: dict[str, Any], notes: list[str]
) -> HeadraceError:
    error = kind(code, message, fix, **facts)
    for note in notes:
        error.add_note(note)
    return error


class ConfigError(HeadraceError, ValueError):
    """unknown-setting, bad-value, java-missing, port-taken."""


class ArgumentError(ConfigError, TypeError):
    """unknown-argument, wrong-arguments, wrong-type: a public function was called with what it does not take.

    `facts`: `function`, and where they apply `argument` and `nearest`.
    """


class UnknownName(HeadraceError, AttributeError):
    """unknown-name: an object or module of Headrace has no such attribute or method; `facts["nearest"]` may help."""

    def __init__(self, code: str, message: str, fix: str = "", **facts: Any) -> None:
        super().__init__(code, message, fix, **facts)
        # With a name and without an object Python adds no "Did you mean" of its own behind ours.
        self.name = str(facts.get("name", ""))


class MissingExtra(ConfigError, ImportError):
    """extra-missing: a package that an extra installs is not there; `facts` holds `package` and `extra`."""

    def __init__(self, code: str, message: str, fix: str = "", **facts: Any) -> None:
        super().__init__(code, message, fix, **facts)
        self.name = facts.get("package")


class TopologyError(HeadraceError, ValueError):
    """unresolved-column, needs-shuffle, aggregate-not-mergeable, state-name-taken, not-supported-here, schema-missing.

    `facts["where"]` is the file and line of the user's call.
    """


class UnboundedStateWarning(UserWarning):
    """A call keeps state that only grows. The warning is issued at the user's line and names the remedy."""


class CannotConnect(HeadraceError, ConnectionError):
    """broker-unreachable, tls-failed, authentication-failed, registry-unreachable."""


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
    """member-fenced, instance-fenced, producer-fenced: another process owns what this one held."""


class MaxPollExceeded(BrokerError):
    """max-poll-exceeded: no micro-batch finished for `max.poll.interval.ms`, so the member left."""


class RecordError(HeadraceError, ValueError):
    """undecodable, undigestible, too-large: one record; `facts` holds topic, partition, offset, excerpt."""


class StateError(HeadraceError):
    """state-locked, -unusable, -of-another-group, -format, -corrupt, -schema-changed; disk-full."""


class SlotGone(HeadraceError):
    """slot-lost: an executor of a cluster ended or cannot be reached; its tasks are opened elsewhere."""

    retriable = True


class SinkError(HeadraceError):
    """sink-failed, sink-refused, sink-undecided, batch-undecided, disk-full: a table or a topic could not take what
    belongs into it; `facts` holds the name of a table.
    """


class UserCodeError(HeadraceError):
    """user-code: the user's own function raised; the original is chained as `__cause__`."""
