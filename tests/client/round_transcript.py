"""Commands of `transcripts/`: one round of requests to transaction coordinators, answered by hand.

After each command: what happened to the id, and the ids that are due with the reason of their last try.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.harness.transcripts import Command

from headrace.client.transaction_rules import Round
from headrace.errors import CannotConnect, HeadraceError
from headrace.protocol.error_codes import ErrorCode

__all__ = ["RoundTranscript"]


class RoundTranscript:
    """Mutable: the round, and the ids with an outcome that was shown."""

    def __init__(self) -> None:
        self._round: Round[str] | None = None
        self._shown: set[str] = set()
        self.verbs: dict[str, Callable[[Command], object]] = {
            "round": self.begin,
            "answer": self.answer,
            "unanswered": lambda command: self.round.note_disconnect(command.word(0)),
            "found": lambda command: self.round.moved.discard(command.word(0)),
            "give-up": lambda _: self.round.give_up(CannotConnect("broker-unreachable", "no answer")),
        }

    @property
    def round(self) -> Round[str]:
        assert self._round is not None, "a transcript begins with `round`"
        return self._round

    def run(self, command: Command) -> list[str]:
        assert command.verb in self.verbs, f"unknown command: {command.verb}"
        self.verbs[command.verb](command)
        lines = [
            f"outcome {tid}: {outcome_text(outcome)}"
            for tid, outcome in self.round.outcomes.items()
            if tid not in self._shown
        ]
        self._shown.update(self.round.outcomes)
        return [*lines, *(self.due_text(tid) for tid in self.round.due)]

    def begin(self, command: Command) -> None:
        self._round = Round(what="to commit", api="EndTxn", ids=command.words)

    def answer(self, command: Command) -> None:
        tid, code = command.word(0), ErrorCode[command.word(1).lower()]
        self.round.apply_answer(tid, code, f"answer to {tid}")

    def due_text(self, tid: str) -> str:
        reason = self.round.reasons.get(tid)
        parts = [f"after {reason.name.upper()}"] if reason is not None else []
        parts += ["its coordinator is looked up"] if tid in self.round.moved else []
        return f"due     {tid}: {', '.join(parts)}" if parts else f"due     {tid}"


def outcome_text(outcome: str | HeadraceError) -> str:
    if isinstance(outcome, str):
        return outcome
    ruling = outcome.facts.get("transaction")
    return f"{outcome.code}, {ruling}" if ruling else outcome.code
