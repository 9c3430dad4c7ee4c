"""The triggers of a rebalance are told apart in the coordinator's events, and so in its log."""

from __future__ import annotations

from typing import Any

from tests.coordinator.classic_context import ClassicContext


class _Watched(ClassicContext):
    """Keeps the reasons of rebalances."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        super().__init__()

    def _heard(self, outcome: Any) -> None:
        super()._heard(outcome)
        self.reasons += [dict(event.details)["reason"] for event in outcome.events if event.name == "RebalanceBegan"]

    def began(self) -> str:
        (reason,) = self.reasons
        self.reasons.clear()
        return reason


def test_a_classic_group_names_what_began_a_rebalance() -> None:
    ctx = _Watched()
    leader, follower = ctx.stable(2)
    ctx.reasons.clear()

    def settle() -> None:
        for each in (leader, follower):
            ctx.sync(each, ctx.membership.generation, {leader: b""} if each == leader else None)
        assert ctx.state == "Stable"

    newcomer = ctx.admitted()
    ctx.join(newcomer)
    assert ctx.began().startswith(f"member {newcomer} joins; ")
    ctx.join(leader)
    ctx.join(follower)
    assert ctx.leave(newcomer) == "none"
    assert ctx.began() == f"members left: {newcomer}"
    ctx.join(leader)
    ctx.join(follower)
    settle()
    ctx.join(follower, protocols=(("range", b"other topics"),))
    assert ctx.began().startswith(f"member {follower} joins again, its metadata changed; ")
    ctx.join(leader)
    settle()
    ctx.join(leader)  # the leader saw new partitions: its reason is in the request
    assert ctx.began().startswith(f"member {leader} joins again, it is the leader; client reason: ")
    ctx.join(follower, protocols=(("range", b"other topics"),))
    settle()
    for _ in range(3):
        ctx.sleep(4_000)
        ctx.heartbeat(leader, ctx.membership.generation)
    assert ctx.began() == f"the session of member {follower} timed out"
