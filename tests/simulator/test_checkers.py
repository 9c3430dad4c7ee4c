"""The simulator notices when a rule is broken: each test breaks one in the code under simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.client.membership import member_core
from penstock.coordinator.offsets import offset_commit
from penstock.coordinator.streams import group as group_module
from penstock.coordinator.streams import streams_group_heartbeat, task_holders
from penstock.protocol.error_codes import ErrorCode
from penstock.simulator.simulation import simulate

SEEDS = range(40)


def first_broken() -> str:
    for seed in SEEDS:
        broken = simulate(seed).broken
        if broken is not None:
            return broken
    pytest.fail(f"none of {len(SEEDS)} seeds noticed")


def test_tasks_handed_out_before_they_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_holders.TaskHolders, "hold", lambda *_: None)
    assert "is active at" in first_broken()


def test_commits_of_those_who_do_not_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_commit, "_refusal", lambda *_: ErrorCode.none)
    assert "the committed offset of" in first_broken()


def test_a_record_that_replay_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = group_module.StreamsGroup.replay_target
    calls = iter(range(10**9))

    def forgetful(self: Any, member_id: str, value: Any) -> None:
        if next(calls) % 97:
            replay(self, member_id, value)

    monkeypatch.setattr(group_module.StreamsGroup, "replay_target", forgetful)
    assert first_broken()


def test_a_group_that_never_computes_a_target(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = streams_group_heartbeat.target_assignment

    def late(*arguments: Any, **named: Any) -> Any:
        target = decide(*arguments, **named)
        return replace(target, records=()) if target.records else target

    monkeypatch.setattr(streams_group_heartbeat, "target_assignment", late)
    assert first_broken()


def test_a_member_that_does_not_let_go_when_its_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_core.MemberCore, "_lose", lambda *_: None)
    assert "more than 20000 things happen at" in first_broken()
