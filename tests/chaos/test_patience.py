"""Whether a wait of a chaos run takes a slow machine for a stuck application, or the other way round."""

from __future__ import annotations

from tests.chaos.patience import COMMIT_S, STILL_S, Patience, Signs, phase_of


class _Wait:
    """A wait on a machine of which a process gets `share` of a core."""

    def __init__(self, share: float = 1.0) -> None:
        self.now = 0.0
        self._patience = Patience(clock=lambda: self.now, share=lambda: share)

    def look(self, seconds: float, *, commits: object = 0, phases: object = 0) -> str:
        self.now += seconds
        return self._patience.look(Signs(commits=commits, phases=phases))


def test_a_wait_goes_on_while_offsets_move() -> None:
    wait = _Wait()
    assert not any(wait.look(STILL_S / 2, commits=at) for at in range(100))


def test_a_wait_ends_when_nothing_moves() -> None:
    wait = _Wait()
    assert wait.look(1) == ""
    assert wait.look(STILL_S - 10) == ""
    assert wait.look(20).startswith("stuck: nothing moved for 131 s")


def test_a_process_that_gets_a_quarter_of_a_core_has_four_times_as_long() -> None:
    wait = _Wait(share=0.25)
    assert wait.look(STILL_S * 3.9) == ""
    assert wait.look(STILL_S * 0.2)


def test_phases_that_change_forever_are_no_progress_without_a_commit() -> None:
    wait = _Wait()
    found = [wait.look(STILL_S / 2, phases=number) for number in range(int(COMMIT_S / STILL_S * 2) + 2)]
    assert not any(found[:-2])
    assert found[-1].startswith("stuck: no commit for")


def test_a_commit_while_no_broker_answered_is_seen_later() -> None:
    wait = _Wait()
    wait.look(1, commits=5)
    assert wait.look(STILL_S - 20, commits=None) == ""
    assert wait.look(10, commits=6) == ""
    assert wait.look(STILL_S - 10, commits=6) == ""


def test_a_broker_that_comes_and_goes_is_no_progress() -> None:
    wait = _Wait()
    found = [wait.look(STILL_S / 10, commits=(5 if number % 2 else None)) for number in range(12)]
    assert found[-1]


def test_a_phase_changes_with_micro_batches_and_restored_records_only() -> None:
    status = {"pid": 1, "state": "running", "tasks": {"a": [0]}, "batches": {"a": 5}, "time": 1.0, "lag": {"a": 5}}
    assert phase_of(status) == phase_of({**status, "time": 2.0, "lag": {"a": 900}})
    assert phase_of(status) != phase_of({**status, "batches": {"a": 6}})
    restoring = {"a": {"1": {"restored": 5, "remaining": 95, "records_per_second": 7.0}}}
    further = {"a": {"1": {"restored": 6, "remaining": 94, "records_per_second": 7.0}}}
    assert phase_of({**status, "restoring": restoring}) != phase_of({**status, "restoring": further})
