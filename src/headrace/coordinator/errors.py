"""The refusals of a rule. The handler of an API turns one into that API's own error reply."""

from __future__ import annotations

from headrace.protocol.error_codes import ErrorCode

__all__ = ["CoordinatorError", "CorruptRecord"]


class CoordinatorError(Exception):
    """A request is refused with `code`; nothing was changed. `message` is a whole sentence for the client's log."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def __repr__(self) -> str:
        return f"CoordinatorError({self.code.name}, {self.message!r})"


class CorruptRecord(Exception):
    """A record of `__consumer_offsets` that cannot be what it says it is."""
