"""Offline migration of an empty group between classic and streams: offsets stay, members never lose their group.

The classic side has no JoinGroup yet: what it will write is taken from the registry's rule and from Kafka's records.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest
from tests.coordinator.coordinator_context import CoordinatorContext

from headrace.coordinator.group_registry import GroupRegistry
from headrace.coordinator.records import schemas as s
from headrace.coordinator.records import serde
from headrace.coordinator.request_context import CoordinatorError, CorruptRecord
from headrace.coordinator.result import CoordinatorRecord, CoordinatorResult
from headrace.coordinator.shard import GroupCoordinatorShard

POSITIONS = {("in", 0): 7, ("in", 3): 9}
MEMBER = s.GroupMember(
    member_id="c", client_id="c", client_host="/h", session_timeout_ms=1, subscription=b"", assignment=b""
)


def classic(*members: s.GroupMember, generation: int = 4) -> CoordinatorRecord:
    """What Kafka writes for a classic consumer group after a JoinGroup, or when the last member left."""
    value = s.GroupMetadataValue(protocol_type="consumer", generation=generation, members=members)
    return CoordinatorRecord(key=s.GroupMetadataKey(group="g"), value=value)


def write(ctx: CoordinatorContext, records: Iterable[CoordinatorRecord]) -> None:
    """As the runner does for a result: append as bytes, replay."""
    ctx.apply(CoordinatorResult(records=tuple(records)))


def registry_of(ctx: CoordinatorContext) -> GroupRegistry:
    registry = GroupRegistry()
    for record in ctx.shard.hard_state():
        registry.replay(record)
    return registry


def listed(ctx: CoordinatorContext) -> list[tuple[str, str]]:
    return [(group.group_type, group.group_state) for group in ctx.shard.list_groups()]


def become_classic(ctx: CoordinatorContext) -> None:
    """What a classic member's first join will do to the group."""
    _, tombstones = registry_of(ctx).classic_group_to_join("g")
    write(ctx, (*tombstones, classic(MEMBER)))


def same_after_restart(ctx: CoordinatorContext) -> None:
    before = ctx.shard.digest()
    ctx.restart()
    assert ctx.shard.digest() == before


def test_empty_classic_group_becomes_streams_and_keeps_offsets() -> None:
    ctx = CoordinatorContext()
    ctx.commit(POSITIONS)
    write(ctx, [classic(MEMBER), classic(generation=5)])
    assert listed(ctx) == [("classic", "Empty")]
    joined = ctx.join("m1")
    assert joined.record_names[:2] == ["GroupMetadata!", "MemberMetadata"]
    assert (listed(ctx), ctx.fetch(None)) == ([("streams", "Stable")], POSITIONS)
    same_after_restart(ctx)


def test_empty_streams_group_becomes_classic_and_keeps_offsets() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.leave("m1")
    ctx.commit(POSITIONS)
    become_classic(ctx)
    assert (listed(ctx), ctx.fetch(None)) == ([("classic", "Stable")], POSITIONS)
    same_after_restart(ctx)
    write(ctx, [classic(generation=5)])
    assert ctx.join("m1").epoch == 2
    assert (listed(ctx), ctx.fetch(None)) == ([("streams", "Stable")], POSITIONS)
    same_after_restart(ctx)


def test_an_empty_streams_group_without_offsets_leaves_nothing_behind() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    ctx.leave("m1")
    _, tombstones = registry_of(ctx).classic_group_to_join("g")
    write(ctx, tombstones)
    assert (listed(ctx), list(ctx.shard.hard_state())) == ([], [])


def test_members_keep_their_group_and_the_refusal_names_both_types() -> None:
    ctx = CoordinatorContext()
    ctx.join("m1")
    with pytest.raises(CoordinatorError, match="is a streams group with 1 members, not a classic group") as caught:
        registry_of(ctx).classic_group_to_join("g")
    assert caught.value.code.name == "inconsistent_group_protocol"
    other = CoordinatorContext()
    write(other, [classic(MEMBER)])
    with pytest.raises(CoordinatorError, match="is not a streams group: it is a classic group") as caught:
        other.join("m1")
    assert caught.value.code.name == "group_id_not_found"
    assert registry_of(other).classic_group_to_join("g")[1] == ()
    assert registry_of(other).classic_group_to_join("new")[1] == ()


def test_replay_over_members_is_corrupt_over_an_empty_group_it_is_not() -> None:
    """KAFKA-20254: a history that lost a tombstone must not make the shard unloadable."""
    ctx = CoordinatorContext()
    ctx.join("m1")
    with pytest.raises(CorruptRecord, match="streams group with 1 members"):
        ctx.shard.replay(classic(MEMBER))
    ctx.leave("m1")
    ctx.shard.replay(classic())
    assert listed(ctx) == [("classic", "Empty")]
    ctx.shard.replay(
        CoordinatorRecord(
            key=s.StreamsGroupMetadataKey(group_id="g"), value=s.StreamsGroupMetadataValue(epoch=3, metadata_hash=0)
        )
    )
    assert listed(ctx) == [("streams", "Empty")]


def history(random_source: random.Random) -> CoordinatorContext:
    """A group that changes its type again and again, with commits in between."""
    ctx = CoordinatorContext()
    for round_ in range(random_source.randint(2, 5)):
        ctx.join(f"m{round_}")
        if random_source.random() < 0.5:
            ctx.join(f"n{round_}")
            ctx.leave(f"n{round_}")
        ctx.leave(f"m{round_}")
        ctx.commit({("in", random_source.randrange(4)): round_})
        if random_source.random() < 0.6:
            become_classic(ctx)
            write(ctx, [classic(generation=5 + round_)])
            ctx.commit({("in", random_source.randrange(4)): 100 + round_})
        elif random_source.random() < 0.3:
            ctx.delete_groups("g")
    if random_source.random() < 0.5:
        ctx.join("last")
    return ctx


def compacted(log: list[tuple[bytes, bytes | None]], random_source: random.Random) -> list[tuple[bytes, bytes | None]]:
    """The log cleaner: below some offset only the last record of each key stays, and maybe no tombstone."""
    dirty_from = random_source.randint(0, len(log))
    newest = {key: offset for offset, (key, _) in enumerate(log[:dirty_from])}
    drop_tombstones = random_source.random() < 0.5
    cleaned = [
        (key, value)
        for offset, (key, value) in enumerate(log[:dirty_from])
        if newest[key] == offset and (value is not None or not drop_tombstones)
    ]
    return cleaned + log[dirty_from:]


@pytest.mark.parametrize("seed", range(60))
def test_compacted_histories_replay_to_the_same_state(seed: int) -> None:
    random_source = random.Random(seed)
    ctx = history(random_source)
    for _ in range(8):
        log = compacted(ctx.log, random_source)
        log = compacted(log, random_source)
        replayed = GroupCoordinatorShard(0, ctx.configuration, ctx.image)
        for key, value in log:
            record = serde.decode(key, value)
            assert record is not None
            replayed.replay(record)
        assert replayed.digest() == ctx.shard.digest()
