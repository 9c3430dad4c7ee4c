"""Regular expressions that match in time linear in the text, whatever the expression is.

Kafka compiles expressions from clients (topics to subscribe to, transactional ids to list) with RE2 for this reason.
Python's `re` backtracks, so one request could block a broker for hours. The syntax is RE2's (`re2_parser`). As in Kafka
the whole text has to match. An expression becomes a nondeterministic automaton, walked as sets of its states; known
sets are cached. `cost` counts the work, so that a caller with many texts can match them in portions.
"""

from __future__ import annotations

from collections.abc import Generator

from headrace.coordinator.re2_parser import MOST_STATES, BadPattern, PatternParser, is_word

__all__ = ["BadPattern", "LinearPattern"]

# A cache entry is a set of states. A pattern can reach very many of them, so the cache is emptied when it is full.
MOST_REMEMBERED = 10_000
_PAUSE_COST = 5_000
_END, _WORD, _NEWLINE, _OTHER = 0, 1, 2, 3  # what comes next


class LinearPattern:
    """A compiled expression. Raises BadPattern. Mutable: it caches sets of states and counts its work."""

    def __init__(self, pattern: str, *, most_states: int = MOST_STATES) -> None:
        self.pattern = pattern
        self.cost = 0
        parser = PatternParser(pattern, most_states)
        self._first, self._last = parser.parsed()
        self._states = parser.states
        self._looks_ahead = parser.looks_ahead
        self._with_repeatable: dict[tuple[frozenset[int], str, int], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """Whether the expression matches the whole text."""
        walk = self.walk(text)
        while True:
            try:
                next(walk)
            except StopIteration as end:
                return bool(end.value)

    def walk(self, text: str) -> Generator[int, None, bool]:
        """Match like `matches`, in portions: yield the cost of each portion, return the result."""
        reported = self.cost
        # 1. All states that are reached before the first character, 2. one step per character, 3. the pattern matches
        #    if the last state is among those of the end. States are a set: a text costs at most (characters x states),
        #    where backtracking may cost 2 to the power of the characters.
        current = self._closure((self._first,), before=None, ahead=self._kind(text, 0))
        for index, character in enumerate(text):
            current = self._step(current, character, self._kind(text, index + 1))
            if not current:
                return False
            if self.cost - reported > _PAUSE_COST:
                yield self.cost - reported
                reported = self.cost
        return self._last in current

    def _kind(self, text: str, index: int) -> int:
        if index >= len(text):
            return _END
        if not self._looks_ahead:
            return _OTHER
        if text[index] == "\n":
            return _NEWLINE
        return _WORD if is_word(text[index]) else _OTHER

    def _step(self, current: frozenset[int], character: str, ahead: int) -> frozenset[int]:
        self.cost += 1
        key = current, character, ahead
        known = self._with_repeatable.get(key)
        if known is not None:
            return known
        # Counted only where the cache has no answer: that is where time goes.
        self.cost += len(current)
        moved = [
            target
            for number in current
            if (characters := self._states[number].characters) is not None and character in characters
            for target in self._states[number].following
        ]
        reached = self._closure(moved, before=character, ahead=ahead)
        if len(self._with_repeatable) >= MOST_REMEMBERED:
            self._with_repeatable.clear()
        self._with_repeatable[key] = reached
        return reached

    def _closure(self, numbers: list[int] | tuple[int, ...], *, before: str | None, ahead: int) -> frozenset[int]:
        """All states that are reached without a character."""
        seen: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            state = self._states[number]
            # An anchor that does not hold is no way on. It is not marked as seen: nothing else leads out of it.
            if state.at and not _holds(state.at, before, ahead):
                continue
            seen.add(number)
            if state.characters is None:
                waiting.extend(state.following)
        self.cost += len(seen)
        return frozenset(seen)


def _holds(at: str, before: str | None, ahead: int) -> bool:
    if at == "^":
        return before is None
    if at == "$":
        return ahead == _END
    if at == "<":
        return before is None or before == "\n"
    if at == ">":
        return ahead in (_END, _NEWLINE)
    between = (before is not None and is_word(before)) != (ahead == _WORD)
    return between if at == "b" else not between
