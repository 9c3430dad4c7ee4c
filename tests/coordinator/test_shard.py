"""Committed offsets, and looking at and deleting groups."""

from __future__ import annotations

import pytest
from tests.coordinator.coordinator_context import CoordinatorContext
from tests.harness.coordinator import error_of

from headrace.coordinator.records import schemas as s
from headrace.coordinator.request_context import CorruptRecord
from headrace.coordinator.result import CoordinatorRecord


def two_members() -> CoordinatorContext:
    """m1 has 0 and 1 since epoch 2, m2 has 2 and 3 since epoch 3; both are at epoch 3."""
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    ctx.heartbeat("m2", 3)
    return ctx


# --- commits of members ---


@pytest.mark.parametrize(
    ("member", "epoch", "partition", "code"),
    [
        ("m1", 3, 0, "none"),
        ("m1", 2, 0, "none"),
        ("m2", 3, 2, "none"),
        ("m2", 2, 2, "stale_member_epoch"),
        ("m1", 3, 2, "stale_member_epoch"),
        ("m1", 2, 3, "stale_member_epoch"),
    ],
)
def test_commit_validation_by_member_and_epoch(member: str, epoch: int, partition: int, code: str) -> None:
    """Kafka would take the fifth: the current epoch for a partition of another member."""
    ctx = two_members()
    assert ctx.commit({("in", partition): 42}, member, epoch) == {("in", partition): code}
    assert ctx.fetch([("in", partition)]) == {("in", partition): 42 if code == "none" else -1}


def test_a_foreign_partition_fails_alone() -> None:
    ctx = two_members()
    codes = ctx.commit({("in", 0): 5, ("in", 2): 5, ("in", 1): 5}, "m1", 3)
    assert codes == {("in", 0): "none", ("in", 2): "stale_member_epoch", ("in", 1): "none"}


def test_a_task_pending_revocation_may_still_commit() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.join("m2")
    ctx.heartbeat("m1", 2)
    assert ctx.commit({("in", 3): 9}, "m1", 2) == {("in", 3): "none"}
    ctx.heartbeat("m1", 2, active={"0": (0, 1)})
    assert ctx.commit({("in", 3): 9}, "m1", 2) == {("in", 3): "stale_member_epoch"}


def test_a_topic_outside_the_topology_needs_the_current_epoch() -> None:
    ctx = two_members()
    assert ctx.commit({("notes", 0): 1}, "m1", 3) == {("notes", 0): "none"}
    assert ctx.commit({("notes", 0): 1}, "m1", 2) == {("notes", 0): "stale_member_epoch"}


def test_commits_that_are_refused_as_a_whole() -> None:
    ctx = two_members()
    one = {("in", 0): 1}
    assert error_of(lambda: ctx.commit(one, "m1", 4)) == "stale_member_epoch"
    assert error_of(lambda: ctx.commit(one, "m9", 3)) == "unknown_member_id"
    assert error_of(lambda: ctx.commit(one)) == "unknown_member_id", "members exist"
    assert error_of(lambda: ctx.commit(one, "m1", 3, api_version=8)) == "unsupported_version"
    assert error_of(lambda: ctx.commit(one, "m1", 3, group_id="x")) == "group_id_not_found"
    assert error_of(lambda: ctx.commit(one, "m1", 3, group_id="x", api_version=8)) == "illegal_generation"


def test_metadata_has_a_largest_size() -> None:
    ctx = CoordinatorContext(settings={"offset.metadata.max.bytes": 3})
    assert ctx.commit({("in", 0): 1}, metadata="äb") == {("in", 0): "none"}
    assert ctx.commit({("in", 0): 1}, metadata="äbc") == {("in", 0): "offset_metadata_too_large"}


def test_only_who_names_no_member_at_all_fetches_as_nobody() -> None:
    ctx = two_members()
    assert ctx.fetch([("in", 0)]) == {("in", 0): -1}
    assert error_of(lambda: ctx.fetch([("in", 0)], member_id="")) == "unknown_member_id"


# --- groups that only hold offsets ---


def test_a_simple_group_has_no_members_that_could_commit() -> None:
    ctx = CoordinatorContext()
    ctx.commit({("in", 0): 7})
    assert error_of(lambda: ctx.commit({("in", 0): 8}, "m1", 1)) == "unknown_member_id"
    assert error_of(lambda: ctx.commit({("in", 0): 8}, "", 1)) == "unknown_member_id"


def test_commit_without_member_creates_a_simple_group() -> None:
    ctx = CoordinatorContext()
    assert ctx.commit({("in", 0): 7}) == {("in", 0): "none"}
    listed = ctx.shard.list_groups()[0]
    assert (listed.group_type, listed.group_state, listed.protocol_type) == ("classic", "Empty", "")
    joined = ctx.join("m1")
    assert joined.record_names[0] == "GroupMetadata!"
    assert (ctx.shard.list_groups()[0].group_type, ctx.fetch(None)) == ("streams", {("in", 0): 7})
    before = ctx.shard.digest()
    ctx.restart()
    assert ctx.shard.digest() == before
    ctx.leave("m1")
    assert ctx.commit({("in", 0): 8}) == {("in", 0): "none"}


def test_a_classic_group_with_members_stays_what_it_is() -> None:
    ctx = CoordinatorContext()
    member = s.GroupMember(
        member_id="c", client_id="c", client_host="/h", session_timeout_ms=1, subscription=b"", assignment=b""
    )
    value = s.GroupMetadataValue(protocol_type="consumer", generation=4, members=(member,))
    ctx.shard.replay(CoordinatorRecord(key=s.GroupMetadataKey(group="g"), value=value))
    assert error_of(lambda: ctx.join("m1")) == "group_id_not_found"
    assert error_of(lambda: ctx.commit({("in", 0): 1})) == "unknown_member_id"
    assert ctx.delete_groups("g") == {"g": "non_empty_group"}
    (described,) = ctx.shard.describe_groups(["g"], ctx.context(api_version=6))
    assert (described.group_state, described.protocol_type) == ("Stable", "consumer")
    with pytest.raises(CorruptRecord, match="classic group"):
        ctx.shard.replay(
            CoordinatorRecord(
                key=s.StreamsGroupMetadataKey(group_id="g"),
                value=s.StreamsGroupMetadataValue(epoch=1, metadata_hash=0),
            )
        )


# --- fetch and delete ---


def test_fetching_as_a_member_needs_the_current_epoch() -> None:
    ctx = two_members()
    ctx.commit({("in", 0): 5}, "m1", 3)
    assert ctx.fetch([("in", 0), ("in", 1)], member_id="m1", epoch=3) == {("in", 0): 5, ("in", 1): -1}
    assert error_of(lambda: ctx.fetch([], member_id="m1", epoch=2)) == "stale_member_epoch"
    assert error_of(lambda: ctx.fetch([], member_id="x", epoch=3)) == "unknown_member_id"
    assert ctx.fetch([("in", 0)], group_id="absent") == {("in", 0): -1}


def test_offsets_of_topics_that_are_read_are_kept() -> None:
    ctx = two_members()
    ctx.commit({("in", 0): 5, ("notes", 0): 5}, "m1", 3)
    codes = ctx.delete_offsets([("in", 0), ("notes", 0), ("absent", 0)])
    assert codes == {"in": "group_subscribed_to_topic", "notes": "none", "absent": "none"}
    assert ctx.fetch(None) == {("in", 0): 5}
    ctx.leave("m1")
    ctx.leave("m2")
    assert ctx.delete_offsets([("in", 0)]) == {"in": "none"}
    assert error_of(lambda: ctx.delete_offsets([("in", 0)], group_id="x")) == "group_id_not_found"


def test_a_deleted_topic_takes_its_offsets_along() -> None:
    ctx = CoordinatorContext(topics={"in": 4, "other": 1})
    ctx.commit({("in", 0): 5, ("other", 0): 6})
    ctx.set_topics({"other": 1})
    assert ctx.fetch(None) == {("other", 0): 6}
    ctx.set_topics({"other": 1}, renewed=["other"])
    assert (ctx.fetch(None), ctx.shard.list_groups()) == ({}, ())


def test_deleting_groups() -> None:
    ctx = two_members()
    ctx.commit({("in", 0): 5}, "m1", 3)
    ctx.commit({("in", 0): 5}, group_id="simple")
    assert ctx.delete_groups("g", "absent", "simple") == {
        "g": "non_empty_group",
        "absent": "group_id_not_found",
        "simple": "none",
    }
    ctx.leave("m1")
    ctx.leave("m2")
    assert ctx.delete_groups("g") == {"g": "none"}
    assert (ctx.shard.list_groups(), list(ctx.shard.hard_state())) == ((), [])
    assert ctx.shard.digest() == ctx.replayed().digest() == CoordinatorContext().shard.digest()
    assert ctx.join("m1").epoch == 2


# --- describe and list ---


def test_describing_another_type_as_classic() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    (old,) = ctx.shard.describe_groups(["g"], ctx.context(api_version=5))
    (new,) = ctx.shard.describe_groups(["g"], ctx.context(api_version=6))
    assert (old.group_state, old.error_code.name) == ("Dead", "none")
    assert (new.group_state, new.error_code.name) == ("Dead", "group_id_not_found")
