"""Whether a wait of a chaos run takes a slow machine for a stuck application, or the other way round."""

from __future__ import annotations

import os
from pathlib import Path

from tests.chaos.patience import COMMIT_S, STILL_S, Patience, ShareOfACore, Signs, phase_of


class _Wait:
    """A wait on a machine of which a process gets `share` of a core."""

    def __init__(self, share: float = 1.0) -> None:
        self.now = 0.0
        self._patience = Patience(lambda: share, clock=lambda: self.now)

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


def test_the_share_of_a_core_is_what_threads_got_of_what_they_could_have_used(tmp_path: Path) -> None:
    def ran(thread: str, ran: int, waited: int) -> None:
        (tmp_path / "7" / "task" / thread).mkdir(parents=True, exist_ok=True)
        (tmp_path / "7" / "task" / thread / "schedstat").write_text(f"{ran} {waited} 9\n")

    share = ShareOfACore(lambda: [7, 8], root=tmp_path)  # 8 has ended
    ran("1", 100, 500)
    assert share.look() == 1.0
    ran("1", 110, 530)
    ran("2", 1000, 1000)  # new: what it did before is not known
    assert share.look() == 10 / 40
    assert share.look() == 1.0  # all wait for events
    ran("2", 1000, 2000)
    assert share.look() == 0.02


def test_the_kernel_counts_how_long_threads_ran_and_waited() -> None:
    share = ShareOfACore(lambda: [os.getpid()])
    share.look()
    sum(range(1_000_000))
    assert 0 < share.look() <= 1.0
