"""Meaning of a transaction coordinator's answers, and which requests are repeated. Pure: no socket, no clock.

The rules of KIP-98 and KIP-890 as in Apache Kafka 4.3.1's producer (the handlers of TransactionManager), reduced to
what a runtime with many transactional ids needs. There are three kinds of refusals: *fenced* (another holder of the id,
or the coordinator ended an overdue transaction), *abortable* (this transaction must be aborted, the identity stays
valid) and *fatal*. A `Round` carries many requests to their ends, each with an outcome of its own: one that is refused
means nothing for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from headrace.client.broker_errors import COORDINATOR_MOVED, refusal
from headrace.errors import HeadraceError
from headrace.protocol.error_codes import ErrorCode, is_retriable

__all__ = ["Round", "Ruling", "first_refusal", "refused", "ruling"]

Ruling = Literal["done", "again", "moved", "fenced", "abortable", "fatal"]
Answer = TypeVar("Answer")

_FENCED: Final = frozenset({ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch})
_ABORTABLE: Final = frozenset(
    {
        # KIP-890, part 2: the broker itself marks errors after which an abort is the remedy.
        ErrorCode.transaction_abortable,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_id_mapping,
        # From the group's coordinator, about the member (TxnOffsetCommit)
        ErrorCode.unknown_member_id,
        ErrorCode.illegal_generation,
        ErrorCode.stale_member_epoch,
        ErrorCode.fenced_member_epoch,
        ErrorCode.fenced_instance_id,
        ErrorCode.group_authorization_failed,
        ErrorCode.topic_authorization_failed,
        ErrorCode.offset_metadata_too_large,
        ErrorCode.invalid_commit_offset_size,
    }
)


def ruling(code: ErrorCode) -> Ruling:
    """Return the reaction to an error code."""
    if code == ErrorCode.none:
        return "done"
    if code in COORDINATOR_MOVED:
        return "moved"
    if code in _FENCED:
        return "fenced"
    if code in _ABORTABLE:
        return "abortable"
    return "again" if is_retriable(code) else "fatal"


def first_refusal(codes: Iterable[ErrorCode]) -> ErrorCode:
    """Return the code that decides about an answer with one code per partition: final codes before retriable ones."""
    first = ErrorCode.none
    # A request of several partitions has one outcome here: a final code decides even if others could be retried, since
    # the transaction must be aborted anyway.
    for code in codes:
        if ruling(code) in {"fenced", "abortable", "fatal"}:
            return code
        if first == ErrorCode.none:
            first = code
    return first


def refused(code: ErrorCode, what: str, *, api: str, transactional_id: str) -> HeadraceError:
    """Return the error for a final code; `facts["transaction"]` is its ruling."""
    return refusal(code, what, api=api, transactional_id=transactional_id, transaction=ruling(code))


@dataclass(slots=True)
class Round(Generic[Answer]):
    """Requests to coordinators that are sent together, by transactional id, until each has an outcome. Mutable.

    The caller sends the requests of the ids in `due` and reports `answered` or `unanswered` for each, or `give_up` when
    the time is up.

    Attributes:
        what: The operation, for messages.
        api: Kafka's name of the request.
        outcomes: The answer or the final error by id.
        moved: Ids whose coordinator must be looked up again.
        reasons: The last retriable error of each id.
    """

    what: str
    api: str
    ids: tuple[str, ...]
    outcomes: dict[str, Answer | HeadraceError] = field(default_factory=dict)
    moved: set[str] = field(default_factory=set)  # whose coordinator is to be looked up again
    reasons: dict[str, ErrorCode] = field(default_factory=dict)  # why the last try came to nothing

    @property
    def due(self) -> tuple[str, ...]:
        """The ids without an outcome."""
        return tuple(tid for tid in self.ids if tid not in self.outcomes)

    def apply_answer(self, tid: str, code: ErrorCode, answer: Answer) -> None:
        """Apply an answer."""
        match ruling(code):
            case "done":
                self.outcomes[tid] = answer
            case "again" | "moved" as rule:
                self.reasons[tid] = code
                if rule == "moved":
                    self.moved.add(tid)
            case _:
                self.outcomes[tid] = refused(code, f"{self.what} {tid}", api=self.api, transactional_id=tid)

    def note_disconnect(self, tid: str) -> None:
        """Note a broken connection. The request may be sent twice: all of these requests are idempotent."""
        self.moved.add(tid)
        self.reasons.pop(tid, None)

    def give_up(self, unanswered: HeadraceError) -> None:
        """End all ids without an outcome: with their last error, or with `unanswered` if none was answered."""
        for tid in self.due:
            code = self.reasons.get(tid)
            self.outcomes[tid] = (
                unanswered if code is None else refused(code, f"{self.what} {tid}", api=self.api, transactional_id=tid)
            )
