"""What the members of a group subscribe to, counted: topic names, regular expressions, and what those stand for.

Kept by replay. A regular expression counts as resolved as long as its record is there; a member that subscribes to an
unresolved one reads nothing by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.metadata_hash import group_hash
from headrace.coordinator.metadata_image import MetadataImage, TopicImage
from headrace.coordinator.records.consumer_schemas import (
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupRegularExpressionValue,
)

__all__ = ["Subscriptions"]


class Subscriptions:
    """`names`, `regexes`: how many members subscribe to each. `resolved`: the topics behind a regular expression.

    Mutable: it is an index.
    """

    __slots__ = ("names", "regexes", "resolved")

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.regexes: dict[str, int] = {}
        self.resolved: dict[str, ConsumerGroupRegularExpressionValue] = {}

    def copy(self) -> Subscriptions:
        other = Subscriptions()
        other.names, other.regexes, other.resolved = dict(self.names), dict(self.regexes), dict(self.resolved)
        return other

    def change(self, before: ConsumerGroupMemberMetadataValue, after: ConsumerGroupMemberMetadataValue) -> None:
        """One member's subscription was `before` and is `after`."""
        if before.subscribed_topic_names != after.subscribed_topic_names:
            _count(self.names, before.subscribed_topic_names, -1)
            _count(self.names, after.subscribed_topic_names, 1)
        if before.subscribed_topic_regex != after.subscribed_topic_regex:
            _count(self.regexes, filter(None, (before.subscribed_topic_regex,)), -1)
            _count(self.regexes, filter(None, (after.subscribed_topic_regex,)), 1)

    def changed(
        self, before: ConsumerGroupMemberMetadataValue, after: ConsumerGroupMemberMetadataValue
    ) -> Subscriptions:
        """A copy after the change; a regular expression that nobody subscribes to any more is out of it."""
        copy = self.copy()
        copy.change(before, after)
        left = before.subscribed_topic_regex
        if left and left != after.subscribed_topic_regex and left not in copy.regexes:
            copy.resolved.pop(left, None)
        return copy

    def resolve(self, regex: str, value: ConsumerGroupRegularExpressionValue | None) -> None:
        if value is None:
            self.resolved.pop(regex, None)
        else:
            self.resolved[regex] = value

    def topics(self) -> dict[str, None]:
        """All topics that are read, whether they exist or not."""
        found = dict.fromkeys(self.names)
        for value in self.resolved.values():
            found.update(dict.fromkeys(value.topics))
        return found

    def topics_of(self, member: ConsumerGroupMember, image: MetadataImage) -> dict[str, TopicImage]:
        """The member's topics that exist, by name, in the order of names."""
        names = dict.fromkeys(member.metadata.subscribed_topic_names)
        resolved = self.resolved.get(member.regex or "")
        if resolved is not None:
            names.update(dict.fromkeys(resolved.topics))
        return {name: image.topics[name] for name in sorted(names) if name in image.topics}

    def metadata_hash(self, image: MetadataImage) -> int:
        return group_hash(image.topics[name] for name in self.topics() if name in image.topics)

    def is_homogeneous(self, members: int) -> bool:
        """Whether all members read the same, as far as an assignor cares; Kafka's rule, which takes a group in which
        some use names and some a regular expression as different whatever they come to."""
        if not self.regexes:
            return all(count == members for count in self.names.values())
        if next(iter(self.regexes.values())) != members or self.names:
            return False
        of_regex: dict[str, int] = {}
        for value in self.resolved.values():
            _count(of_regex, value.topics, 1)
        return all(count == 1 for count in of_regex.values())


def _count(counts: dict[str, int], names: Iterable[str], step: int) -> None:
    for name in names:
        counts[name] = counts.get(name, 0) + step
        if counts[name] == 0:
            del counts[name]
