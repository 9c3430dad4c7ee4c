"""Regular expressions of a group: what a member's new one means, when topics are looked at anew, and what that gives.

As in Kafka 4.3, all of a group's are resolved together, behind the answer of the heartbeat that asks for it, with the
rights of who sent that heartbeat: when one is new, when a topic was created, and every
`group.consumer.regex.refresh.interval.ms`; at most every 10 s. The group's epoch rises when they stand for other
topics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.group import ConsumerGroup, Subscriptions
from headrace.coordinator.consumer.group_context import ConsumerGroupSoftState, GroupContext
from headrace.coordinator.consumer.member import ConsumerGroupMember
from headrace.coordinator.consumer.timers import regexes_timer
from headrace.coordinator.consumer.topic_regexes import PAUSE_MS, TopicRegexResolution, check_regex
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.result import CoordinatorEvent, CoordinatorRecord, CoordinatorResult, SetTimer

__all__ = [
    "LEAST_REFRESH_INTERVAL_MS",
    "RegexChange",
    "continue_resolution",
    "detect_regex_change",
    "start_resolution_if_due",
]

LEAST_REFRESH_INTERVAL_MS = 10_000


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
    """Raises CoordinatorError(INVALID_REGULAR_EXPRESSION) for one that is new and none."""
    if before.metadata.subscribed_topic_regex == after.metadata.subscribed_topic_regex:
        return RegexChange()
    old, new = before.regex, after.regex
    readers = group.subscriptions.regexes
    found: tuple[CoordinatorRecord, ...] = ()
    if old is not None and readers.get(old, 0) == 1:
        found = (records.regular_expression_tombstone(group.group_id, old),)
    if new is None:
        return RegexChange(changed=True, is_known=old is not None, records=found)
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
    known = group.subscriptions
    is_under_way = soft.resolution is not None and group_context.regexes_timer_runs
    if not (change.is_new or known.regexes) or not subscriptions.regexes or is_under_way:
        return None
    now_ms = group_context.now_ms
    last_ms = max((value.timestamp for value in known.resolved.values()), default=None)
    if last_ms is not None and last_ms <= now_ms <= last_ms + LEAST_REFRESH_INTERVAL_MS:
        return None
    seen_version = soft.regexes_seen_version
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
    """The timer of a look that is under way: the next portion, or what came of it."""
    resolution = soft.resolution
    if resolution is None:
        return None
    if not resolution.go_on():
        due_ms = group_context.now_ms + PAUSE_MS
        return CoordinatorResult(timers=(SetTimer(key=regexes_timer(group.group_id), deadline_ms=due_ms),))
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
