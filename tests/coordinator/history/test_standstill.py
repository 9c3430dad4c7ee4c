"""Standstill of partitions: bounds around the true one, for random members that stop, crash and begin late."""

from __future__ import annotations

from random import Random

import pytest

from headrace.coordinator.history.standstill import COMMIT_WAIT_MS, StandstillTracker

KEY = ("in", 0)


@pytest.mark.parametrize("seed", range(200))
def test_bounds_hold_the_true_standstill(seed: int) -> None:
    chance = Random(seed)
    tracker = StandstillTracker()
    now_ms, truth = 1_000, []
    tracker.assign("m0", [KEY], now_ms)
    began_ms = now_ms
    for turn in range(1, 20):
        owner, successor = f"m{turn - 1}", f"m{turn}"
        # 1. The owner commits at times of its own, then stops: by request, by a crash, or with a last commit after the
        #    coordinator took its partition.
        stopped_ms = now_ms + chance.randint(0, 20_000)
        for at_ms in sorted(chance.randint(began_ms, stopped_ms) for _ in range(chance.randint(1, 5))):
            tracker.commit(KEY, at_ms)
        kind = chance.choice(["asked", "crashed", "revoked"])
        lost_ms = stopped_ms
        if kind == "asked":
            tracker.remove(owner, lost_ms, is_abrupt=False)
        elif kind == "crashed":
            lost_ms += chance.randint(0, 45_000)
            # An eager rebalance may have taken its partitions before its session was over.
            if chance.random() < 0.3:
                tracker.revoke_all(lost_ms)
                lost_ms += chance.randint(0, 5_000)
            tracker.remove(owner, lost_ms, is_abrupt=True)
        else:
            tracker.assign(owner, [], lost_ms)
            stopped_ms += chance.randint(0, 3_000)
            tracker.commit(KEY, stopped_ms)
            lost_ms = stopped_ms
        # 2. The next owner gets it, begins some time later and commits some time after that.
        assigned_ms = lost_ms + chance.randint(0, 10_000)
        tracker.assign(successor, [KEY], assigned_ms)
        began_ms = assigned_ms + chance.randint(0, 5_000)
        now_ms = began_ms + chance.randint(0, 5_000)
        tracker.commit(KEY, now_ms)
        truth.append((began_ms - stopped_ms, owner, successor))
    found = tracker.take_finished(now_ms)
    assert len(found) == len(truth)
    for each, (standstill_ms, owner, successor) in zip(found, truth, strict=True):
        assert (each.from_member, each.to_member) == (owner, successor)
        assert each.at_most_ms is not None
        assert each.at_least_ms <= standstill_ms <= each.at_most_ms


def test_a_partition_that_stays_with_its_member_stands_still_in_an_eager_rebalance() -> None:
    tracker = StandstillTracker()
    tracker.assign_all({"a": [KEY], "b": [("in", 1)]}, 0)
    tracker.commit(KEY, 900)
    tracker.revoke_all(1_000)
    tracker.assign_all({"a": [KEY]}, 4_000)
    tracker.commit(KEY, 4_500)
    (found,) = tracker.take_finished(5_000)
    assert (found.at_least_ms, found.at_most_ms) == (3_000, 3_500)
    assert not tracker.is_waiting  # in-1 has no owner; it is reported once it has one


def test_without_a_commit_there_is_no_upper_bound() -> None:
    tracker = StandstillTracker()
    tracker.assign("a", [KEY], 0)
    tracker.remove("a", 1_000, is_abrupt=True)
    tracker.assign("b", [KEY], 3_000)
    assert tracker.take_finished(3_000 + COMMIT_WAIT_MS - 1) == []
    (found,) = tracker.take_finished(3_000 + COMMIT_WAIT_MS)
    assert (found.at_least_ms, found.at_most_ms) == (2_000, None)


def test_the_first_assignment_and_commits_without_members_are_no_standstill() -> None:
    tracker = StandstillTracker()
    tracker.commit(KEY, 0)
    tracker.assign("a", [KEY], 1_000)
    tracker.commit(KEY, 2_000)
    assert tracker.take_finished(1_000_000) == []
