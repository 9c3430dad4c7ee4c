"""What a member reports as owned, and when the lists must go out in full.

Null lists mean "as I said last". They would fence a member whose last reply was lost, so after any lost or refused
request the lists are sent. What the application was told of and may have opened counts as owned until it acknowledges.
"""

from __future__ import annotations

from headrace.client.membership.assignment import OwnedTasks

__all__ = ["OwnedReport"]


class OwnedReport:
    """Mutable: what was acknowledged last, what may be open besides, and whether the next heartbeat says so."""

    def __init__(self) -> None:
        self._acknowledged = OwnedTasks()
        self._maybe_opened = OwnedTasks()
        self.is_due = True

    def clear(self) -> None:
        """Everything is lost."""
        self._acknowledged = self._maybe_opened = OwnedTasks()
        self.is_due = True

    def repeat(self) -> None:
        """Nobody knows what the coordinator heard last."""
        self.is_due = True

    def told(self, tasks: OwnedTasks) -> None:
        """The application hears of these tasks now, and may open them before it answers."""
        self._maybe_opened = self._maybe_opened.union(tasks)

    def joined(self) -> None:
        """The coordinator knows that a joiner owns nothing."""
        self.is_due = False

    def acknowledged(self, tasks: OwnedTasks, *, is_newest: bool) -> None:
        """The application works on exactly these, as an answer to the newest assignment or to an older one."""
        self._acknowledged = tasks
        if is_newest:
            self._maybe_opened = OwnedTasks()
            self.is_due = True

    def within(self, tasks: OwnedTasks) -> bool:
        """Whether what was acknowledged holds nothing else."""
        return self._acknowledged.within(tasks)

    def take(self) -> OwnedTasks | None:
        """The lists for the heartbeat that goes out now; None when they need not be said."""
        if not self.is_due:
            return None
        self.is_due = False  # what is acknowledged while this request is out goes into the next one
        return self._acknowledged.union(self._maybe_opened)
