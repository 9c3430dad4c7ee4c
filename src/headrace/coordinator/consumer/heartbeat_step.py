"""One member one step on: what a request of a member makes of the group, once it is known who asks and what is new.

Shared by the two protocols that a member of a consumer group may speak: ConsumerGroupHeartbeat, and JoinGroup of a
member that is still at the classic protocol (`migration`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from headrace.coordinator.consumer import records
from headrace.coordinator.consumer.current_assignment import reconcile
from headrace.coordinator.consumer.group import ConsumerGroup, Subscriptions
from headrace.coordinator.consumer.group_context import ConsumerGroupSoftState, GroupContext
from headrace.coordinator.consumer.join import ConsumerGroupAdmission
from headrace.coordinator.consumer.member import ConsumerGroupMember, Partitions
from headrace.coordinator.consumer.regular_expressions import RegexChange, detect_regex_change, start_resolution_if_due
from headrace.coordinator.consumer.target_assignment import TargetAssignment, stored_target, target_assignment
from headrace.coordinator.consumer.timers import cancel_member_timers, regexes_timer
from headrace.coordinator.consumer.topic_regexes import TopicRegexResolution
from headrace.coordinator.metadata_image import MetadataImage
from headrace.coordinator.modern.events import heartbeat_events
from headrace.coordinator.modern.timers import cancel_replaced_member_timers
from headrace.coordinator.records.consumer_schemas import ConsumerGroupMetadataValue
from headrace.coordinator.result import CancelTimer, CoordinatorEvent, CoordinatorRecord, SetTimer

__all__ = ["HeartbeatStep", "heartbeat_step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatStep:
    """Changes that one request of a member makes in its group.

    `admission`: the member before the request. `updated`: with the changes that the request reports; `reconciled`: with
    the partitions that it may have now. `metadata` is the group's own object if the epoch stays. `soft` applies the
    changes of soft state. `starts_resolution`: regular expressions are resolved anew.
    """

    admission: ConsumerGroupAdmission
    updated: ConsumerGroupMember
    reconciled: ConsumerGroupMember
    metadata: ConsumerGroupMetadataValue
    target: TargetAssignment
    change: RegexChange
    soft: Callable[[], None]
    starts_resolution: bool

    @property
    def replaced_id(self) -> str | None:
        """The member id whose place a static member took; None if it took none."""
        return self.admission.replaced_id

    def records(self) -> tuple[CoordinatorRecord, ...]:
        group = self.admission.group
        found: list[CoordinatorRecord] = []
        if self.admission.replacement is not None:
            found.extend(self.admission.replacement.records)
        if self.updated is not self.admission.member:
            found.append(records.member_record(group.group_id, self.updated))
        found.extend(self.change.records)
        if self.metadata is not group.metadata:
            found.append(records.group_metadata_record(group.group_id, self.metadata))
            if group.partition_metadata is not None:  # of a broker before 4.1; the hash stands for it now
                found.append(records.partition_metadata_tombstone(group.group_id))
        found.extend(self.target.records)
        if self.reconciled is not self.updated:
            found.append(records.current_assignment_record(group.group_id, self.reconciled))
        return tuple(found)

    def timers(self, now_ms: int) -> list[SetTimer | CancelTimer]:
        """Return timers that do not depend on the member's protocol: of a replaced member, of regular expressions."""
        group_id = self.admission.group.group_id
        found: list[SetTimer | CancelTimer] = []
        if self.replaced_id is not None:
            found.extend(cancel_member_timers(group_id, self.replaced_id))
        found.extend(cancel_replaced_member_timers(group_id, self.replaced_id, self.admission.member.member_id))
        if self.starts_resolution:
            found.append(SetTimer(key=regexes_timer(group_id), deadline_ms=now_ms))
        return found

    def events(self) -> tuple[CoordinatorEvent, ...]:
        group, member_id = self.admission.group, self.admission.member.member_id
        return heartbeat_events(
            group.group_id,
            member_id,
            joined=member_id not in group.members,
            replaced_id=self.replaced_id,
            bumped_to=None if self.metadata is group.metadata else (self.metadata.epoch, self._bump_reason()),
            computed_for=self.target.epoch if self.target.records else None,
        )

    def _bump_reason(self) -> str:
        """The trigger of a new group epoch. A changed subscription alters the hash of topics too and comes first."""
        member = self.admission.member
        if member.member_id not in self.admission.group.members:
            return "a member joined"
        if self.updated.metadata != member.metadata or self.replaced_id is not None:
            return "a member or its subscription changed"
        return "topics or their partition counts changed"


def heartbeat_step(
    admission: ConsumerGroupAdmission,
    updated: ConsumerGroupMember,
    owned: Partitions | None,
    soft: ConsumerGroupSoftState,
    group_context: GroupContext,
    *,
    computes_target: bool = True,
) -> HeartbeatStep:
    """Steps 4 to 7 of a heartbeat. `owned`: what the member says it has.

    Without `computes_target` the target stays; a member whose group would need another is then not reconciled. Raises
    CoordinatorError.
    """
    group, member = admission.group, admission.member
    # Step 4. `subscriptions` are the group's with this request; a copy, since only replay changes the group's own.
    change = detect_regex_change(group, member, updated)
    subscriptions = group.subscriptions
    if updated is not member:
        subscriptions = subscriptions.changed(member.metadata, updated.metadata)
    names_changed = updated.metadata.subscribed_topic_names != member.metadata.subscribed_topic_names
    resolution = start_resolution_if_due(group, soft, change, subscriptions, group_context)
    metadata = _bump_group_epoch(
        group, soft, subscriptions, group_context, reads_others=names_changed or change.is_known
    )
    # Step 6.
    if computes_target:
        target = target_assignment(group, updated, subscriptions, metadata.epoch, group_context)
    else:
        target = stored_target(group, updated)
    # Step 7. A member that has its target and whose subscription stays is not looked at: this is the common case.
    subscription_changed = names_changed or change.changed
    reconciled = updated
    is_due = subscription_changed or not updated.is_reconciled_to(target.epoch)
    if is_due and (computes_target or target.epoch >= metadata.epoch):
        topics = subscriptions.topics_of(updated, group_context.image)
        reconciled = reconcile(
            group,
            updated,
            target=target.partitions,
            target_epoch=target.epoch,
            readable={topic.topic_id for topic in topics.values()},
            subscription_changed=subscription_changed,
            owned=owned,
        )
    return HeartbeatStep(
        admission=admission,
        updated=updated,
        reconciled=reconciled,
        metadata=metadata,
        target=target,
        change=change,
        soft=partial(_update_soft_state, soft, group_context.image, metadata.epoch, resolution),
        starts_resolution=resolution is not None,
    )


def _update_soft_state(
    soft: ConsumerGroupSoftState, image: MetadataImage, group_epoch: int, resolution: TopicRegexResolution | None
) -> None:
    soft.remember_comparison(image, group_epoch)
    if resolution is not None:
        soft.resolution = resolution


def _bump_group_epoch(
    group: ConsumerGroup,
    soft: ConsumerGroupSoftState,
    subscriptions: Subscriptions,
    group_context: GroupContext,
    *,
    reads_others: bool,
) -> ConsumerGroupMetadataValue:
    """Step 5: the group's metadata, one epoch on when the assignor would see something new; else the same object.

    A regular expression that is not resolved yet is no reason: it will be one when it is.
    """
    if not reads_others and not soft.must_compare(group_context.image, group.group_epoch):
        return group.metadata
    metadata_hash = subscriptions.metadata_hash(group_context.image)
    if not reads_others and metadata_hash == group.metadata.metadata_hash:
        return group.metadata
    return replace(group.metadata, epoch=group.group_epoch + 1, metadata_hash=metadata_hash)
