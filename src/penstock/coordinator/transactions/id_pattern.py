"""A regular expression over transactional ids, matched in time linear in the id whatever the pattern is.

Kafka compiles the client's pattern with RE2 for this reason; Python's `re` backtracks, and one request could hold up a
broker for hours. The syntax is RE2's without flags, named classes and Unicode classes: literals, `.`, classes, `\\d`,
`\\w`, `\\s` and their opposites, groups, `|`, `* + ? {n,m}` (greedy or not makes no difference here), `^ $`. As in
Kafka the whole id has to match. A pattern becomes a nondeterministic automaton, which is walked as sets of its states;
sets that were met are remembered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["BadPattern", "IdPattern"]

MOST_CHARACTERS = 1_000
MOST_REPEATS = 1_000
MOST_STATES = 4_000
MOST_DEPTH = 100
MOST_REMEMBERED = 10_000

_DIGIT = (("0", "9"),)
_WORD = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
_SPACE = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_CLASSES = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_SPECIAL = frozenset("\\.+*?()|[]{}^$")


class BadPattern(Exception):
    """It is no regular expression, or one beyond the limits."""


@dataclass(frozen=True, slots=True)
class _Characters:
    """A set of characters: in one of the ranges, or in none of them."""

    ranges: tuple[tuple[str, str], ...]
    negated: bool = False

    def __contains__(self, character: str) -> bool:
        return any(low <= character <= high for low, high in self.ranges) is not self.negated


@dataclass(slots=True)
class _State:
    """Waits for one of `characters`, or (None) goes on at once; `at` is "^" or "$" where only an end may be passed."""

    following: list[int] = field(default_factory=list)
    characters: _Characters | None = None
    at: str = ""


_Fragment = tuple[int, int]  # its first and its last state; the last one has no way out yet


class IdPattern:
    """Raises BadPattern."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MOST_CHARACTERS:
            raise BadPattern(f"A pattern has at most {MOST_CHARACTERS} characters.")
        parser = _Parser(pattern)
        self._first, self._last = parser.parsed()
        self._states = parser.states
        self._remembered: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def matches(self, text: str) -> bool:
        """The whole text."""
        current = self._closure((self._first,), at_start=True, at_end=not text)
        for index, character in enumerate(text):
            current = self._step(current, character, at_end=index + 1 == len(text))
            if not current:
                return False
        return self._last in current

    def _step(self, current: frozenset[int], character: str, *, at_end: bool) -> frozenset[int]:
        key = current, character
        known = None if at_end else self._remembered.get(key)
        if known is not None:
            return known
        moved = [
            target
            for number in current
            if (characters := self._states[number].characters) is not None and character in characters
            for target in self._states[number].following
        ]
        reached = self._closure(moved, at_start=False, at_end=at_end)
        if not at_end:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            self._remembered[key] = reached
        return reached

    def _closure(self, numbers: list[int] | tuple[int, ...], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """All states that are reached without a character."""
        seen: set[int] = set()
        waiting = list(numbers)
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            state = self._states[number]
            if (state.at == "^" and not at_start) or (state.at == "$" and not at_end):
                continue
            seen.add(number)
            if state.characters is None:
                waiting.extend(state.following)
        return frozenset(seen)


class _Parser:
    """Reads the pattern once, from left to right. Mutable: the position and the states made so far."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._depth = 0
        self.states: list[_State] = []

    def parsed(self) -> _Fragment:
        whole = self._alternatives()
        if self._position < len(self._pattern):
            raise BadPattern("A group is closed that was not opened.")
        return whole

    def _alternatives(self) -> _Fragment:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadPattern(f"Groups are nested deeper than {MOST_DEPTH}.")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        first, last = self._add(_State()), self._add(_State())
        for start, end in branches:
            self.states[first].following.append(start)
            self.states[end].following.append(last)
        return first, last

    def _sequence(self) -> _Fragment:
        first = last = self._add(_State())
        while self._position < len(self._pattern) and self._pattern[self._position] not in "|)":
            begun = self._position
            start, end = self._atom()
            start, end = self._repeated(begun, (start, end))
            self.states[last].following.append(start)
            last = end
        return first, last

    def _repeated(self, begun: int, atom: _Fragment) -> _Fragment:
        """The atom with what follows it; a copy is made by reading its text again."""
        repeats = self._repeats()
        if repeats is None:
            return atom
        least, most = repeats
        self._take("?")
        if self._repeats() is not None:
            raise BadPattern("A repetition is repeated.")
        behind = self._position
        if most is not None and most == 0:
            nothing = self._add(_State())
            return nothing, nothing
        copies = [atom]
        for _ in range(1, max(least, 1) if most is None else most):
            self._position = begun
            copies.append(self._atom())
        self._position = behind
        return self._joined(copies, least, endless=most is None)

    def _joined(self, copies: list[_Fragment], least: int, *, endless: bool) -> _Fragment:
        """One after the other; those beyond the least may be left out, and the last of an endless row comes again."""
        first, last = self._add(_State()), self._add(_State())
        previous = first
        for number, (start, end) in enumerate(copies):
            if number >= least:
                self.states[previous].following.append(last)
            self.states[previous].following.append(start)
            previous = self._add(_State())
            self.states[end].following.append(previous)
        self.states[previous].following.append(last)
        if endless:
            self.states[previous].following.append(copies[-1][0])
        return first, last

    def _repeats(self) -> tuple[int, int | None] | None:
        for sign, repeats in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return repeats
        begun = self._position
        if not self._take("{"):
            return None
        least = self._number()
        most = self._number() if self._take(",") else least
        if least is None or not self._take("}"):
            self._position = begun  # RE2 takes such a brace for itself
            return None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise BadPattern("A repetition count is out of range.")
        return least, most

    def _number(self) -> int | None:
        begun = self._position
        while self._position < len(self._pattern) and self._pattern[self._position] in "0123456789":
            self._position += 1
        digits = self._pattern[begun : self._position]
        return int(digits) if digits else None

    def _atom(self) -> _Fragment:
        character = self._next()
        if character == "(":
            return self._group()
        if character in "*+?":
            raise BadPattern("There is nothing to repeat.")
        if character in "^$":
            only = self._add(_State(at=character))
            return only, only
        return self._one_of(self._characters(character))

    def _group(self) -> _Fragment:
        if self._take("?") and not self._take(":"):
            raise BadPattern("Flags and named groups are not known here.")
        inner = self._alternatives()
        if not self._take(")"):
            raise BadPattern("A group is not closed.")
        return inner

    def _characters(self, character: str) -> _Characters:
        if character == ".":
            return _Characters((("\n", "\n"),), negated=True)
        if character == "[":
            return self._class()
        if character == "\\":
            return self._escaped()
        return _Characters(((character, character),))

    def _escaped(self) -> _Characters:
        character = self._next()
        if character.lower() in _CLASSES:
            return _Characters(_CLASSES[character.lower()], negated=character.isupper())
        if character in _CONTROLS:
            return _Characters(((_CONTROLS[character], _CONTROLS[character]),))
        if character in _SPECIAL or not (character.isalnum() and character.isascii()):
            return _Characters(((character, character),))
        raise BadPattern(f"The escape \\{character} is not known here.")

    def _class(self) -> _Characters:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        first = True
        while first or not self._take("]"):
            first = False
            low = self._class_member(ranges)
            if low is None:
                continue
            high = low
            if self._pattern[self._position : self._position + 1] == "-" and not self._ahead("-]"):
                self._position += 1
                high = self._class_member(ranges) or ""
                if high < low:
                    raise BadPattern("A range of characters runs backwards.")
            ranges.append((low, high))
        return _Characters(tuple(ranges), negated=negated)

    def _class_member(self, ranges: list[tuple[str, str]]) -> str | None:
        """A character, or None when it was a class of its own, which is added."""
        if self._ahead("[:"):
            raise BadPattern("Named classes are not known here.")
        character = self._next()
        if character != "\\":
            return character
        escaped = self._escaped()
        if escaped.negated:
            raise BadPattern("An opposite inside a class is not known here.")
        if len(escaped.ranges) == 1 and escaped.ranges[0][0] == escaped.ranges[0][1]:
            return escaped.ranges[0][0]
        ranges.extend(escaped.ranges)
        return None

    def _one_of(self, characters: _Characters) -> _Fragment:
        last = self._add(_State())
        return self._add(_State(following=[last], characters=characters)), last

    def _add(self, state: _State) -> int:
        if len(self.states) >= MOST_STATES:
            raise BadPattern("The pattern is too large.")
        self.states.append(state)
        return len(self.states) - 1

    def _next(self) -> str:
        if self._position >= len(self._pattern):
            raise BadPattern("The pattern ends too early.")
        self._position += 1
        return self._pattern[self._position - 1]

    def _take(self, expected: str) -> bool:
        if self._pattern[self._position : self._position + 1] != expected:
            return False
        self._position += 1
        return True

    def _ahead(self, expected: str) -> bool:
        return self._pattern.startswith(expected, self._position)
