"""What a consumer wants to read: names, a pattern that the broker resolves (KIP-848), or one that we resolve."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["SubscribedTopics", "SubscriptionPattern"]


@dataclass(frozen=True, slots=True)
class SubscriptionPattern:
    """A regular expression in RE2's syntax that the coordinator resolves, for `group.protocol=consumer` only.

    It must match the whole name. A Python `re.Pattern` is resolved by the client instead, in both protocols.
    """

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribedTopics:
    """`names`, or of the topics that exist those that `matching` matches wholly, or `broker_regex`."""

    names: tuple[str, ...] = ()
    matching: re.Pattern[str] | None = None
    broker_regex: str | None = None

    def resolved(self, existing: Iterable[tuple[str, bool]]) -> SubscribedTopics:
        """With the names that match now; `existing`: (name, internal). Internal topics are left out, as in Kafka."""
        if self.matching is None:
            return self
        found = sorted(name for name, internal in existing if not internal and self.matching.fullmatch(name))
        return SubscribedTopics(names=tuple(found), matching=self.matching)
