"""Matching of all topics with a group's regular expressions, in portions, beside the broker's other work. KIP-848.

The engine is linear in the text (`re2_matcher`); this module bounds all texts together. A regular expression that costs
more than its share matches no topic; an event reports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from headrace.coordinator.errors import CoordinatorError
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.re2_matcher import BadPattern, LinearPattern
from headrace.coordinator.records.consumer_schemas import ConsumerGroupRegularExpressionValue
from headrace.protocol.error_codes import ErrorCode

__all__ = ["PAUSE_MS", "MayDescribe", "TopicRegexResolution", "check_regex"]

MayDescribe = Callable[[str], bool]
"""Whether the client that sent a request may describe a topic, by name."""
PAUSE_MS = 5
"""Between two portions."""
_PORTION = 20_000
_LEAST_SHARE = 1_000_000
_SHARE_PER_CHARACTER = 20
"""Of the topics' names. A plain pattern costs 1 for each once its states were met."""


def check_regex(regex: str) -> None:
    """Raises CoordinatorError(INVALID_REGULAR_EXPRESSION)."""
    try:
        LinearPattern(regex)
    except BadPattern as error:
        raise CoordinatorError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{regex}` is not a valid regular expression: {error}.",
        ) from error


class TopicRegexResolution:
    """One look at the topics of one image, for who asked. Mutable: how far it has come."""

    def __init__(
        self, regexes: Iterable[str], image: MetadataImage, may_describe: MayDescribe | None, *, now_ms: int
    ) -> None:
        self._regexes = tuple(sorted(regexes))
        self._image = image
        self._may_describe = may_describe
        self._started_ms = now_ms
        self._found: dict[str, list[str]] = {regex: [] for regex in self._regexes}
        self.given_up: list[str] = []
        self._work = self._steps()
        self.is_done = False

    def go_on(self) -> bool:
        """One portion more; True when everything was looked at."""
        spent = 0
        while spent < _PORTION and not self.is_done:
            cost = next(self._work, None)
            if cost is None:
                self.is_done = True
            else:
                spent += cost
        return self.is_done

    def values(self) -> dict[str, ConsumerGroupRegularExpressionValue]:
        """Return the matching topics of each regular expression, sorted."""
        return {
            regex: ConsumerGroupRegularExpressionValue(
                topics=tuple(sorted(topics)), version=self._image.version, timestamp=self._started_ms
            )
            for regex, topics in self._found.items()
        }

    def _steps(self) -> Iterator[int]:
        """The cost of each topic."""
        names = tuple(self._image.topics)
        share = _LEAST_SHARE + _SHARE_PER_CHARACTER * sum(map(len, names))
        for regex in self._regexes:
            try:
                pattern = LinearPattern(regex)
            except BadPattern:  # a record of a broker that knows more than we do
                self.given_up.append(regex)
                continue
            for name in names:
                before = pattern.cost
                matches = yield from pattern.walk(name)
                if matches and (self._may_describe is None or self._may_describe(name)):
                    self._found[regex].append(name)
                yield min(pattern.cost - before, _PORTION) + 1
                if pattern.cost > share:
                    self.given_up.append(regex)
                    self._found[regex].clear()
                    break
