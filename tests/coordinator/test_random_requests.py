"""Random heartbeats of random members, right and wrong in every field: answered or refused, never anything else.

Whatever was asked, an active task has one holder, an instance id one member, and the log replays to the live state.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.coordinator.coordinator_context import STATEFUL, CoordinatorContext, subtopology, topology

from headrace.coordinator.request_context import CoordinatorError
from headrace.coordinator.streams.group import StreamsGroup
from headrace.protocol.kio_units import from_ms
from headrace.protocol.messages import streams_group_heartbeat_request as m

MEMBERS = ("a", "b", "c", " ", "")
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)
TOPOLOGIES = (
    STATEFUL,
    STATEFUL,
    STATEFUL,
    None,
    topology(),
    m.Topology(epoch=0, subtopologies=()),
    topology(subtopology(changelogs=("cl",)), epoch=1),
    topology(subtopology(sources=("nowhere",))),
    topology(subtopology(repartitions=(("r", -1),), sinks=("r",))),
    topology(subtopology(copartitions=(((9,), (-1,)),))),
)


def random_tasks(chance: Random) -> tuple[m.TaskIds, ...] | None:
    kind = chance.random()
    if kind < 0.3:
        return None
    if kind < 0.6:
        return ()
    return tuple(
        m.TaskIds(
            subtopology_id=chance.choice(["0", "0", "0", "1", ""]),
            partitions=tuple(chance.choice([0, 1, 2, 3, 4, -1, INT_MAX]) for _ in range(chance.randint(0, 4))),
        )
        for _ in range(chance.randint(1, 2))
    )


def random_offsets(chance: Random) -> tuple[m.TaskOffset, ...] | None:
    if chance.random() < 0.7:
        return None
    return tuple(
        m.TaskOffset(
            subtopology_id=chance.choice(["0", "1", ""]),
            partition=chance.choice([0, 1, -1]),
            offset=chance.choice([-1, 7]),
        )
        for _ in range(chance.randint(0, 3))
    )


def random_request(chance: Random, epochs: dict[str, int]) -> m.StreamsGroupHeartbeatRequest:
    """Each field is what an honest member would send, or rarely something else."""

    def odd(honest: Any, *others: Any) -> Any:
        return chance.choice(others) if chance.random() < 0.06 else honest

    member_id = chance.choice(MEMBERS[:3])
    known = epochs.get(member_id, 0)
    epoch = odd(
        chance.choice([0, known, known, known, -1, -2 if chance.random() < 0.5 else known]), 1, 2, 9, -3, INT_MAX
    )
    joins = epoch == 0
    tells = joins or chance.random() < 0.3
    lists = [() if joins else random_tasks(chance) or (), (), ()] if tells else [None, None, None]
    endpoint = chance.choice([None, None, m.Endpoint(host="", port=0), m.Endpoint(host="h", port=65_535)])
    tags = chance.choice([None, (), (m.KeyValue(key="", value=""),)])
    return m.StreamsGroupHeartbeatRequest(
        group_id=odd("g", "h", ""),
        member_id=odd(member_id, *MEMBERS),
        member_epoch=epoch,
        endpoint_information_epoch=chance.choice([-1, 0, INT_MAX]),
        instance_id=odd({"a": "i", "b": "j"}.get(member_id), None, "i", "k", " "),
        rack_id=odd(None, "r", ""),
        rebalance_timeout=from_ms(odd(5_000 if joins else -1, -1, 0, INT_MIN, INT_MAX)),
        topology=odd(STATEFUL if joins else None, *TOPOLOGIES),
        active_tasks=odd(lists[0], random_tasks(chance)),
        standby_tasks=odd(lists[1], random_tasks(chance)),
        warmup_tasks=odd(lists[2], random_tasks(chance)),
        process_id=odd(member_id if joins else None, "p", ""),
        user_endpoint=endpoint,
        client_tags=odd(tags, (m.KeyValue(key="k", value="v"),) * 2),
        task_offsets=odd(None, random_offsets(chance)),
        task_end_offsets=odd(None, random_offsets(chance)),
        shutdown_application=chance.random() < 0.05,
    )


def check(ctx: CoordinatorContext) -> None:
    for group_id in ("g", "h"):
        group = ctx.shard.group(group_id)
        if not isinstance(group, StreamsGroup):
            continue
        held = [
            task
            for member in group.members.values()
            for tasks in (member.assigned, member.pending_revocation)
            for task in tasks.active
        ]
        assert len(held) == len(set(held)), "an active task has two holders"
        instances = [each.metadata.instance_id for each in group.members.values() if each.metadata.instance_id]
        assert sorted(instances) == sorted(group.static_members), "an instance id has two members"


@pytest.mark.parametrize("seed", range(12))
def test_random_heartbeats_are_answered_or_refused(seed: int) -> None:
    chance = Random(seed)
    settings: dict[str, Any] = {"group.streams.num.standby.replicas": seed % 3, "group.streams.max.size": 2 + seed % 2}
    ctx = CoordinatorContext(topics={"in": 4, "cl": 4}, settings=settings)
    epochs = {"c": ctx.join("c", topology=STATEFUL).epoch}
    answered = 0
    for _ in range(250):
        request = random_request(chance, epochs)
        try:
            outcome = ctx.apply(
                ctx.shard.streams_group_heartbeat(
                    request, ctx.context(api_version=chance.randint(0, 1)), now_ms=ctx.now_ms
                )
            )
        except CoordinatorError:
            pass
        else:
            answered += 1
            epochs[request.member_id] = max(0, outcome.epoch)
        ctx.sleep(chance.choice([0, 0, 100, 6_000]))
        check(ctx)
    assert answered > 10
    assert ctx.replayed().digest() == ctx.shard.digest()
