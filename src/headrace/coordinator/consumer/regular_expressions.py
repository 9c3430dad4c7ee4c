"""Regular expressions of a consumer group: resolution to topics, when it is due, and what it changes. KIP-848.

As in Kafka 4.3 (`GroupMetadataManager.maybeUpdateRegularExpressions`), all expressions of a group are resolved
together, after the reply to the heartbeat that asks for it and with the rights of its sender: when an expression is
new, when a topic was created, and every `group.consumer.regex.refresh.interval.ms`; at most every 10 s. The group epoch
rises if an expression now matches other topics.

Topics are matched in portions, beside the broker's other work. The engine is linear in the text (`re2_matcher`); this
module bounds all texts together. A regular expression that costs more than its share matches no topic; an event reports
it. A running resolution is soft state (`ConsumerGroupSoftState`): a restart starts it anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup, Subscriptions
from headrace.coordinator.consumer.group_context import GroupContext, MayDescribe, regexes_timer
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.re2_matcher import BadPattern, LinearPattern
from headrace.coordinator.records.schemas import ConsumerGroupRegularExpressionValue
from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord, CoordinatorResult, SetTimer
from headrace.protocol.error_codes import ErrorCode

__all__ = [
    "LEAST_REFRESH_INTERVAL_MS",
    "PAUSE_MS",
    "ConsumerGroupSoftState",
    "RegexChange",
    "TopicRegexResolution",
    "check_regex",
    "continue_resolution",
    "detect_regex_change",
    "start_resolution_if_due",
]


# Kafka resolves on a background thread (CoordinatorExecutor). Here a timer works in portions between requests, so the
# rules need no lock and no copy of the group.
PAUSE_MS = 5
"""Between two portions."""
_PORTION = 20_000
_LEAST_SHARE = 1_000_000
_SHARE_PER_CHARACTER = 20
"""Of the topics' names. A plain pattern costs 1 for each once its states were met."""


def check_regex(regex: str) -> None:
    """Check a regular expression. Raises CoordinatorError(INVALID_REGULAR_EXPRESSION)."""
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
        """Match one more portion of topics; return True at the end."""
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
        # The bound grows with the topics, so an expression is never given up for the size of the cluster, only for its
        # own cost per character. The generator yields after each topic, so `go_on` can stop between any two.
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


LEAST_REFRESH_INTERVAL_MS = 10_000


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerGroupSoftState:
    """Mutable. `seen`: the image and the group epoch of the last time that the metadata hash was compared; when the
    epoch did not come about (the log refused it), it is compared anew. `regexes_seen_version`: of the image that
    regular expressions were resolved with, None before the first time."""

    seen_image: MetadataImage | None = None
    seen_epoch: int = 0
    regexes_seen_version: int | None = None
    resolution: TopicRegexResolution | None = None

    def must_compare(self, image: MetadataImage, group_epoch: int) -> bool:
        return self.seen_image is not image or group_epoch < self.seen_epoch

    def remember_comparison(self, image: MetadataImage, group_epoch: int) -> None:
        self.seen_image, self.seen_epoch = image, group_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexChange:
    """Change of a member's regular expression.

    `changed`: it has another one. `is_known`: its topics are known, so the target can follow now. `is_new`: no other
    member has it.
    """

    changed: bool = False
    is_known: bool = False
    is_new: bool = False
    records: tuple[CoordinatorRecord, ...] = ()


def detect_regex_change(group: ConsumerGroup, before: ConsumerGroupMember, after: ConsumerGroupMember) -> RegexChange:
    """Return the change of a member's expression. Raises CoordinatorError(INVALID_REGULAR_EXPRESSION)."""
    if before.metadata.subscribed_topic_regex == after.metadata.subscribed_topic_regex:
        return RegexChange()
    old, new = before.regex, after.regex
    readers = group.subscriptions.regexes
    found: tuple[CoordinatorRecord, ...] = ()
    # The record of an expression goes with its last reader; else its topics would be resolved for no member.
    if old is not None and readers.get(old, 0) == 1:
        found = (records.regular_expression_tombstone(group.group_id, old),)
    if new is None:
        return RegexChange(changed=True, is_known=old is not None, records=found)
    # Another member has it, so it was checked when that member came: compiling it again can be saved.
    if new in readers:
        return RegexChange(changed=True, is_known=new in group.subscriptions.resolved, records=found)
    check_regex(new)
    return RegexChange(changed=True, is_new=True, records=found)


def start_resolution_if_due(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    change: RegexChange,
    subscriptions: Subscriptions,
    group_context: GroupContext,
) -> TopicRegexResolution | None:
    """A look at the topics that is due now. `subscriptions` as this heartbeat leaves them, the group's as they were."""
    # 1. Nothing to resolve, or a resolution runs: its timer ends it.
    known = group.subscriptions
    is_under_way = soft.resolution is not None and group_context.regexes_timer_runs
    if not (change.is_new or known.regexes) or not subscriptions.regexes or is_under_way:
        return None
    now_ms = group_context.now_ms
    # 2. At most every 10 s, also for a new expression: members that join one after the other, each with its own
    #    expression, would otherwise start a pass over all topics each. A time stamp in the future (the clock went back)
    #    does not count.
    last_ms = max((value.timestamp for value in known.resolved.values()), default=None)
    if last_ms is not None and last_ms <= now_ms <= last_ms + LEAST_REFRESH_INTERVAL_MS:
        return None
    seen_version = soft.regexes_seen_version
    # 3. Due: a new expression; none was ever resolved; an expression came or went; a topic was created since; too old.
    is_due = (
        change.is_new
        or last_ms is None
        or len(subscriptions.regexes) != len(known.resolved)
        or seen_version is None
        or seen_version < group_context.new_topics_version
        or not last_ms <= now_ms <= last_ms + group_context.configuration.regex_refresh_interval_ms
    )
    if not is_due:
        return None
    return TopicRegexResolution(subscriptions.regexes, group_context.image, group_context.may_describe, now_ms=now_ms)


def continue_resolution(
    group: ConsumerGroup, soft: ConsumerGroupSoftState, group_context: GroupContext
) -> CoordinatorResult | None:
    """Continue a running resolution with the next portion of topics, or end it with its result."""
    resolution = soft.resolution
    if resolution is None:
        return None
    if not resolution.go_on():
        due_ms = group_context.now_ms + PAUSE_MS
        return CoordinatorResult(timers=(SetTimer(key=regexes_timer(group.group_id), deadline_ms=due_ms),))
    # The group may have changed while the resolution ran: expressions that no member has any more are left out, or
    # their records would never be deleted.
    values = {regex: value for regex, value in resolution.values().items() if regex in group.subscriptions.regexes}
    found = [records.regular_expression_record(group.group_id, regex, value) for regex, value in values.items()]
    subscriptions = group.subscriptions.copy()
    subscriptions.resolved.update(values)
    metadata_hash = subscriptions.metadata_hash(group_context.image)
    others = any(value.topics != _topics(group, regex) for regex, value in values.items())
    events = [_given_up_event(group, regex) for regex in resolution.given_up]
    epoch: int | None = None
    if values and (others or metadata_hash != group.metadata.metadata_hash):
        metadata = replace(group.metadata, epoch=group.group_epoch + 1, metadata_hash=metadata_hash)
        found.append(records.group_metadata_record(group.group_id, metadata))
        epoch = metadata.epoch
        details = (("epoch", str(metadata.epoch)), ("reason", "regular expressions stand for other topics"))
        events.append(CoordinatorEvent(name="GroupEpochBumped", group_id=group.group_id, details=details))
    return CoordinatorResult(
        records=tuple(found),
        events=tuple(events),
        soft=partial(_end_resolution, soft, group_context.image, epoch),
    )


def _end_resolution(soft: ConsumerGroupSoftState, image: MetadataImage, group_epoch: int | None) -> None:
    """Write soft state after a resolution. `group_epoch`: the new one, None if it stays."""
    soft.resolution = None
    if group_epoch is not None:
        soft.remember_comparison(image, group_epoch)


def _topics(group: ConsumerGroup, regex: str) -> tuple[str, ...]:
    known = group.subscriptions.resolved.get(regex)
    return () if known is None else known.topics


def _given_up_event(group: ConsumerGroup, regex: str) -> CoordinatorEvent:
    details = (("regex", regex), ("status", "TOO_COSTLY"))
    return CoordinatorEvent(name="RegularExpressionGivenUp", group_id=group.group_id, details=details)
