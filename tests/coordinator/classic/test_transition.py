"""State transitions of a classic group."""

from __future__ import annotations

from tests.coordinator.classic_context import ClassicContext

from headrace.coordinator.classic.group import (
    ENTERED_FROM,
    ClassicGroupState,
)


def test_a_disk_that_refuses_changes_nothing() -> None:
    c = ClassicContext(initial_rebalance_delay_ms=0)
    (one,) = c.stable(1)
    token = c.join(one)
    generation = c.answers[token].generation_id
    c.log.refuses = True
    assert c.code(c.sync(one, generation, {one: b"new"})) == "coordinator_not_available"
    assert c.state == "CompletingRebalance"
    assert c.leave(one) == "coordinator_not_available"
    assert one in c.membership.members
    c.log.refuses = False
    assert c.answers[c.sync(one, generation, {one: b"new"})].assignment == b"new"
    assert c.shard.digest() == c.replayed().digest()


def test_the_table() -> None:
    """Dead is nowhere entered from; nothing else is without a way in."""
    assert ENTERED_FROM.keys() == set(ClassicGroupState)
    for state, before in ENTERED_FROM.items():
        assert before, state
        assert state is ClassicGroupState.DEAD or ClassicGroupState.DEAD not in before
