"""RE2's syntax of regular expressions, read into a nondeterministic automaton. See `re2_matcher`.

Known: literals, `.`, classes with ranges, Perl, POSIX and Unicode categories (`\\d`, `[[:alpha:]]`, `\\p{Lu}`), groups
(plain, `?:`, named), the flags i, m, s and U, `|`, `* + ? {n,m}` (greedy or not makes no difference where the whole
text must match), `^ $ \\A \\z \b \\B`, `\\Q…\\E`, escapes. Not known, and refused: Unicode scripts, `\\C`. A pattern
has bounds on its length, its depth and the size of the automaton. Refusals have the words of RE2/J where it refuses
too.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["BadPattern", "Characters", "PatternParser", "State", "is_word"]

# Bounds of what one request may cost. MOST_REPEATS is RE2's own bound; copies of a group multiply
# (`((a{1000}){1000})`), so the number of states is bounded as well, and depth because this parser is recursive.
MOST_CHARACTERS = 8_000
MOST_REPEATS = 1_000
MOST_STATES = 10_000
MOST_DEPTH = 100

_Ranges = tuple[tuple[str, str], ...]
_DIGIT: _Ranges = (("0", "9"),)
_WORD: _Ranges = (("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z"))
# Perl's `\s` has no vertical tab in RE2, POSIX's `[[:space:]]` has one.
_SPACE: _Ranges = (("\t", "\n"), ("\f", "\r"), (" ", " "))
_PERL = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
_POSIX: dict[str, _Ranges] = {
    "alnum": (("0", "9"), ("A", "Z"), ("a", "z")),
    "alpha": (("A", "Z"), ("a", "z")),
    "ascii": (("\0", "\x7f"),),
    "blank": (("\t", "\t"), (" ", " ")),
    "cntrl": (("\0", "\x1f"), ("\x7f", "\x7f")),
    "digit": _DIGIT,
    # POSIX classes are ASCII in RE2, whatever the text is.
    "graph": (("!", "~"),),
    "lower": (("a", "z"),),
    "print": ((" ", "~"),),
    "punct": (("!", "/"), (":", "@"), ("[", "`"), ("{", "~")),
    "space": (("\t", "\r"), (" ", " ")),
    "upper": (("A", "Z"),),
    "word": _WORD,
    "xdigit": (("0", "9"), ("A", "F"), ("a", "f")),
}
_CONTROLS = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_CATEGORIES = frozenset("LMNPSZC")
_SUBCATEGORIES = frozenset("abcdefgiklmnopqrstu")
_FLAGS = "imsU"
_OCTAL = "01234567"
_HEXADECIMAL = "0123456789abcdefABCDEF"


class BadPattern(Exception):
    """An invalid expression, or one beyond the limits. The message continues a sentence."""


def is_word(character: str) -> bool:
    """Whether a character is one of RE2's word characters (ASCII letters, digits, underscore)."""
    return any(low <= character <= high for low, high in _WORD)


@dataclass(frozen=True, slots=True)
class Characters:
    """A set of characters: in a range, in a part, or of a Unicode category; or in none of them."""

    ranges: _Ranges = ()
    parts: tuple[Characters, ...] = ()
    category: str = ""
    negated: bool = False
    any_case: bool = False

    def __contains__(self, character: str) -> bool:
        found = self._has(character)
        # RE2 folds single characters only. Python's `"ß".upper()` is two, and "SS" would compare as a member of [A-Z].
        if self.any_case and not found:
            others = {character.lower(), character.upper(), character.casefold()}
            found = any(len(other) == 1 and self._has(other) for other in others)
        return found is not self.negated

    def _has(self, character: str) -> bool:
        if self.category:
            return self.category == "Any" or unicodedata.category(character).startswith(self.category)
        return any(low <= character <= high for low, high in self.ranges) or any(
            character in part for part in self.parts
        )


@dataclass(slots=True)
class State:
    """Waits for one of `characters`, or (None) goes on at once; `at`: what must hold there. "^" and "$" are the ends of
    the text, "<" and ">" those of a line, "b" an end of a word, "B" none."""

    following: list[int] = field(default_factory=list)
    characters: Characters | None = None
    at: str = ""


_Fragment = tuple[int, int]  # its first and its last state; the last one has no way out yet


class PatternParser:
    """Reads the pattern once, from left to right. Mutable: the position, the flags, and the states made so far."""

    def __init__(self, pattern: str, most_states: int = MOST_STATES) -> None:
        if len(pattern) > MOST_CHARACTERS:
            raise BadPattern(f"it has more than {MOST_CHARACTERS} characters")
        self._pattern = pattern
        self._most_states = most_states
        self._position = 0
        self._depth = 0
        self._flags: frozenset[str] = frozenset()
        self._names: set[str] = set()
        self.states: list[State] = []
        self.looks_ahead = False

    def parsed(self) -> _Fragment:
        whole = self._alternatives()
        if self._position < len(self._pattern):
            raise BadPattern("unexpected )")
        return whole

    def _alternatives(self) -> _Fragment:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise BadPattern(f"groups are nested deeper than {MOST_DEPTH}")
        flags = self._flags
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        self._flags = flags  # what was set inside ends here
        self._depth -= 1
        if len(branches) == 1:
            return branches[0]
        # Thompson's construction: one fork, one join, and the branches in between.
        first, last = self._add(State()), self._add(State())
        for start, end in branches:
            self.states[first].following.append(start)
            self.states[end].following.append(last)
        return first, last

    def _sequence(self) -> _Fragment:
        first = last = self._add(State())
        while self._position < len(self._pattern) and self._pattern[self._position] not in "|)":
            # Only here, and not in classes: inside of brackets RE2 does not know `\Q`.
            if self._ahead("\\Q"):
                start, end = self._quoted()
            else:
                begun, flags, names = self._position, self._flags, frozenset(self._names)
                atom = self._atom()
                if atom is None:  # flags only
                    continue
                start, end = self._repeated(begun, flags, names, atom)
            self.states[last].following.append(start)
            last = end
        return first, last

    def _quoted(self) -> _Fragment:
        """`\\Q…\\E`, or to the end. Whatever repeats, repeats its last character."""
        self._position += 2
        end = self._pattern.find("\\E", self._position)
        text = self._pattern[self._position : end if end >= 0 else len(self._pattern)]
        self._position += len(text) + (2 if end >= 0 else 0)
        first = last = self._add(State())
        for number, character in enumerate(text):

            def one(character: str = character) -> _Fragment:
                return self._one_of(Characters(((character, character),), any_case="i" in self._flags))

            atom = one()
            if number == len(text) - 1:
                atom = self._copies(atom, one)
            self.states[last].following.append(atom[0])
            last = atom[1]
        return first, last

    def _repeated(self, begun: int, flags: frozenset[str], names: frozenset[str], atom: _Fragment) -> _Fragment:
        # A fragment cannot stand in two places of an automaton, so `x{3}` needs three. Each copy is made by reading the
        # text of the atom again, with the flags and the group names of that place.
        def again() -> _Fragment:
            behind, flags_behind, names_behind = self._position, self._flags, set(self._names)
            self._position, self._flags, self._names = begun, flags, set(names)
            copy = self._atom()
            self._position, self._flags, self._names = behind, flags_behind, names_behind
            return atom if copy is None else copy

        return self._copies(atom, again)

    def _copies(self, atom: _Fragment, again: Callable[[], _Fragment]) -> _Fragment:
        """The atom with what follows it; a copy is made by reading its text again."""
        begun = self._position
        repeats = self._repeats()
        if repeats is None:
            return atom
        least, most = repeats
        # `*?` prefers a shorter match. Where the whole text has to match, both accept the same texts.
        self._take("?")
        behind = self._position
        # `a**` is an error in RE2, not a repetition of a repetition.
        if self._repeats() is not None:
            raise BadPattern("invalid nested repetition operator")
        self._position = behind
        # `a{0}`: nothing, and the atom's states stay without a way in.
        if most is not None and most == 0:
            nothing = self._add(State())
            return nothing, nothing
        copies = [atom]
        for _ in range(1, max(least, 1) if most is None else most):
            self._position = begun
            copies.append(again())
        self._position = behind
        return self._joined(copies, least, endless=most is None)

    def _joined(self, copies: list[_Fragment], least: int, *, endless: bool) -> _Fragment:
        """Join copies in a row. Those beyond the least are optional; the last of an endless row repeats."""
        first, last = self._add(State()), self._add(State())
        previous = first
        for number, (start, end) in enumerate(copies):
            if number >= least:
                self.states[previous].following.append(last)
            self.states[previous].following.append(start)
            previous = self._add(State())
            self.states[end].following.append(previous)
        self.states[previous].following.append(last)
        # Back to the last copy: for `a{2,}` that is the second one.
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
            # `a{`, `a{,3}` and `a{x}` are literals in RE2.
            self._position = begun  # RE2 takes such a brace for itself
            return None
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            raise BadPattern("invalid repeat count")
        return least, most

    def _number(self) -> int | None:
        begun = self._position
        while self._position < len(self._pattern) and self._pattern[self._position] in "0123456789":
            self._position += 1
        digits = self._pattern[begun : self._position]
        return int(digits) if digits else None

    def _atom(self) -> _Fragment | None:
        """Parse one atom; None: it only sets flags."""
        character = self._next("missing argument to repetition operator")
        if character == "(":
            return self._group()
        # A repetition in front of anything to repeat; the sign is read by the rule that knows all of them.
        self._position -= 1
        if self._repeats() is not None:
            raise BadPattern("missing argument to repetition operator")
        self._position += 1
        if character in "^$":
            return self._at({"^": "<", "$": ">"}[character] if "m" in self._flags else character)
        if character == "\\" and self._pattern[self._position : self._position + 1] in ("A", "z", "b", "B"):
            escaped = self._next()
            return self._at({"A": "^", "z": "$"}.get(escaped, escaped))
        return self._one_of(self._characters(character))

    def _at(self, where: str) -> _Fragment:
        # `$` without the flag m needs the end of the text only, which the walk knows anyway.
        self.looks_ahead = self.looks_ahead or where in "bB>"
        only = self._add(State(at=where))
        return only, only

    def _group(self) -> _Fragment | None:
        outer = self._flags
        if self._take("?"):
            if self._take("P<") or self._take("<"):
                self._name()
            elif self._sets_flags():
                return None
        inner = self._alternatives()
        if not self._take(")"):
            raise BadPattern("missing closing )")
        self._flags = outer
        return inner

    def _name(self) -> None:
        end = self._pattern.find(">", self._position)
        name = self._pattern[self._position : end] if end >= 0 else ""
        if not name or not all(is_word(each) for each in name):
            raise BadPattern("invalid named capture")
        if name in self._names:
            raise BadPattern("duplicate capture group name")
        self._names.add(name)
        self._position = end + 1

    def _sets_flags(self) -> bool:
        """`(?i)` sets them for what follows: True. `(?i:` sets them for the group."""
        wanted, sign = set(self._flags), True
        seen = False
        while True:
            character = self._next("invalid or unsupported Perl syntax")
            if character in _FLAGS:
                seen = True
                (wanted.add if sign else wanted.discard)(character)
            # `(?i-s)`: set, then cleared; a second `-` is an error, and so is one without a flag behind it.
            elif character == "-" and sign:
                sign, seen = False, False
            elif character in ":)":
                break
            else:
                raise BadPattern("invalid or unsupported Perl syntax")
        if not sign and not seen:
            raise BadPattern("invalid or unsupported Perl syntax")
        self._flags = frozenset(wanted)
        return character == ")"

    def _characters(self, character: str) -> Characters:
        any_case = "i" in self._flags
        if character == ".":
            return Characters(category="Any") if "s" in self._flags else Characters((("\n", "\n"),), negated=True)
        if character == "[":
            return self._class(any_case=any_case)
        if character == "\\":
            escaped = self._escaped()
            return Characters(((escaped, escaped),), any_case=any_case) if isinstance(escaped, str) else escaped
        return Characters(((character, character),), any_case=any_case)

    def _escaped(self) -> str | Characters:
        """Parse an escaped character or class."""
        character = self._next("trailing backslash at end of expression")
        if character in "dwsDWS":
            return Characters(_PERL[character.lower()], negated=character.isupper())
        if character in "pP":
            return self._category(negated=character == "P")
        if character in _CONTROLS:
            return _CONTROLS[character]
        if character == "x":
            return self._hexadecimal()
        following = self._pattern[self._position : self._position + 1]
        # `\0` and two or three octal digits are a character. `\1` alone would be a reference, which RE2 does not have.
        if character == "0" or (character in _OCTAL and following and following in _OCTAL):
            digits = character
            while len(digits) < 3 and self._pattern[self._position : self._position + 1] in tuple(_OCTAL):
                digits += self._next()
            return chr(int(digits, 8))
        # Escaped punctuation is itself. An unknown letter is an error, so that RE2 may give it a meaning later.
        if character.isascii() and not character.isalnum():
            return character
        raise BadPattern("invalid escape sequence")

    def _hexadecimal(self) -> str:
        """`\\x4f` or `\\x{1F600}`."""
        if self._take("{"):
            end = self._pattern.find("}", self._position)
            digits = self._pattern[self._position : end] if end >= 0 else ""
            self._position = end + 1
        else:
            digits = self._pattern[self._position : self._position + 2]
            self._position += 2
            if len(digits) < 2:
                digits = ""
        if not digits or any(each not in _HEXADECIMAL for each in digits) or int(digits, 16) > 0x10FFFF:
            raise BadPattern("invalid escape sequence")
        return chr(int(digits, 16))

    def _category(self, *, negated: bool) -> Characters:
        """`\\pL`, `\\p{Lu}`, `\\p{^Lu}`, `\\p{Any}`."""
        if self._take("{"):
            end = self._pattern.find("}", self._position)
            name = self._pattern[self._position : end] if end >= 0 else ""
            self._position = end + 1
        else:
            name = self._next("invalid character class range")
        if name.startswith("^"):
            name, negated = name[1:], not negated
        is_known = name == "Any" or (name[:1] in _CATEGORIES and (len(name) == 1 or name[1:] in _SUBCATEGORIES))
        if not is_known:
            raise BadPattern("invalid character class range")
        return Characters(category=name, negated=negated)

    def _class(self, *, any_case: bool) -> Characters:
        negated = self._take("^")
        ranges: list[tuple[str, str]] = []
        parts: list[Characters] = []
        first = True
        # A `]` in the first place is a member of the class.
        while first or not self._take("]"):
            first = False
            low = self._class_member(parts)
            if low is None:
                continue
            high = low
            # A `-` in the last place is a member as well.
            if self._ahead("-") and not self._ahead("-]"):
                self._position += 1
                high = self._class_end()
                # An empty range is a mistake in RE2, not an empty class.
                if high < low:
                    raise BadPattern("invalid character class range")
            ranges.append((low, high))
        return Characters(tuple(ranges), tuple(parts), negated=negated, any_case=any_case)

    def _class_end(self) -> str:
        """The upper end of a range: one character."""
        character = self._next("missing closing ]")
        escaped = self._escaped() if character == "\\" else character
        if isinstance(escaped, Characters):
            raise BadPattern("invalid escape sequence")
        return escaped

    def _class_member(self, parts: list[Characters]) -> str | None:
        """A character, or None when it was a class of its own, which is added."""
        if self._ahead("[:") and (end := self._pattern.find(":]", self._position + 2)) >= 0:
            name = self._pattern[self._position + 2 : end]
            opposite = name.startswith("^")
            known = _POSIX.get(name.removeprefix("^"))
            if known is None:
                raise BadPattern("invalid character class range")
            self._position = end + 2
            parts.append(Characters(known, negated=opposite))
            return None
        character = self._next("missing closing ]")
        if character != "\\":
            return character
        escaped = self._escaped()
        if isinstance(escaped, str):
            return escaped
        parts.append(escaped)
        return None

    def _one_of(self, characters: Characters) -> _Fragment:
        last = self._add(State())
        return self._add(State(following=[last], characters=characters)), last

    def _add(self, state: State) -> int:
        if len(self.states) >= self._most_states:
            raise BadPattern("it is too large")
        self.states.append(state)
        return len(self.states) - 1

    def _next(self, otherwise: str = "the pattern ends too early") -> str:
        if self._position >= len(self._pattern):
            raise BadPattern(otherwise)
        self._position += 1
        return self._pattern[self._position - 1]

    def _take(self, expected: str) -> bool:
        if not self._pattern.startswith(expected, self._position):
            return False
        self._position += len(expected)
        return True

    def _ahead(self, expected: str) -> bool:
        return self._pattern.startswith(expected, self._position)
