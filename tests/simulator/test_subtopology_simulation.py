"""The machine of a subtopology under chaos: rules hold in every world, at every output; each broken rule is found.

HEADRACE_LONG runs 100,000 seeds; `make simulate KIND=subtopology SEEDS=…` runs seeds without pytest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from tests.longer import LONG

from headrace.simulator.subtopology_simulation import Crash, simulate_subtopology
from headrace.simulator.transcript import Outcome
from headrace.spark.machine import subtopology_machine as machine_module
from headrace.spark.machine.batch_outcome import Batch
from headrace.spark.machine.subtopology_machine import SubtopologyMachine

SEEDS = 100_000 if LONG else 1_000
OUTPUTS = 400 if LONG else 40  # commands at which each crash is tried


def told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.broken}\n" + "\n".join(outcome.transcript[-60:])


def test_every_rule_holds() -> None:
    did: Counter[str] = Counter()
    checks = 0
    for seed in range(SEEDS):
        outcome = simulate_subtopology(seed)
        assert outcome.broken is None, told(outcome)
        did += outcome.did
        checks += outcome.checks
    assert {crash.name.lower() for crash in Crash} | {"member_fenced", "rebalance", "slot_lost", "stop"} == set(did)
    assert checks > 10 * SEEDS


@pytest.mark.parametrize("crash", Crash, ids=lambda crash: crash.name.lower())
def test_a_crash_at_each_output(crash: Crash) -> None:
    for number in range(1, OUTPUTS + 1):
        outcome = simulate_subtopology(number, crash_at=(number, crash))
        assert outcome.broken is None, told(outcome)
        assert outcome.did[crash.name.lower()] == 1


def test_a_seed_gives_the_same_transcript() -> None:
    assert simulate_subtopology(7).digest == simulate_subtopology(7).digest


# Rules of the machine, each broken by hand: the simulation has to notice.


def _advances_without_asking(_: Any) -> Any:
    """A job that failed is repeated in the transaction that it left open."""

    def on_job_failed(self: Any, event: Any) -> None:
        batch = self._running(event.batch, machine_module.BatchState.RUNNING)
        batch.failed = True
        self._advance()

    return on_job_failed


def _believes_errors(_: Any) -> Any:
    """A commit whose response was lost counts as failed."""

    def decide(self: Batch, slots: Iterable[int], found: Any) -> None:
        del self, slots, found

    return decide


def _believes_in_success(_: Any) -> Any:
    """A commit with an error counts as done."""

    def take(self: Batch, errors: Any) -> None:
        self.committed |= self.tasks_of(errors)

    return take


def _takes_any_opening(_: Any) -> Any:
    """An opening from before a loss is taken, with the positions of then."""

    def on_opened(self: Any, event: Any) -> None:
        for task in event.partitions:
            if self._tasks.get(task) is machine_module.TaskState.OPENING:
                self._move(task, machine_module.TaskState.OPENED)
                self._requests[task] = event.number
        self._reconcile_tasks()

    return on_opened


def _releases_at_once(_: Any) -> Any:
    """A task is released while its micro-batch runs."""

    def settle(self: Any) -> None:
        states = machine_module.TaskState
        self._release(t for t, s in self._tasks.items() if s in (states.RELEASING, states.LOST))
        self._change_slots()
        for task in [task for task, state in self._tasks.items() if state is states.OPENED]:
            self._move(task, states.RUNNING)
            number = self._requests.pop(task)
            self._out.append(machine_module.commands.Bind(partition=task, slot=self._placed[task], number=number))
        self._open(self._assigned() - set(self._tasks))

    return settle


def _forgets_lost_slots(_: Any) -> Any:
    """Tasks stay in a slot that is lost."""
    return lambda self, event: None


def _gives_up(_: Any) -> Any:
    """An opening that failed is not repeated."""
    return lambda self, event: None


def _keeps_lost_tasks(_: Any) -> Any:
    """A fenced member goes on with its tasks."""
    return lambda self, event: None


def _never_binds(_: Any) -> Any:
    """A task that was opened during a micro-batch waits for ever."""

    def be_idle(self: Any, reopen: Iterable[int] = ()) -> None:
        self._batch = None
        self._enter(machine_module.BatchState.IDLE)
        self._reopen(reopen)

    return be_idle


MUTATIONS: list[tuple[Any, str, Callable[[Any], Any], str]] = [
    (SubtopologyMachine, "_on_job_failed", _advances_without_asking, "committed twice|cannot become"),
    (Batch, "decide_by_offsets", _believes_errors, "committed twice"),
    (Batch, "take_outcome", _believes_in_success, "without the row|not settled"),
    (SubtopologyMachine, "_on_opened", _takes_any_opening, "committed twice|without the row|not behind|KeyError"),
    (SubtopologyMachine, "_reconcile_tasks", _releases_at_once, "during their micro-batch|runs in"),
    (SubtopologyMachine, "_on_slot_lost", _forgets_lost_slots, "runs in the lost slot|cannot become"),
    (SubtopologyMachine, "_on_open_failed", _gives_up, "not settled"),
    (SubtopologyMachine, "_on_lost", _keeps_lost_tasks, "runs in|without the row|not behind"),
    (SubtopologyMachine, "_become_idle", _never_binds, "not settled"),
]


@pytest.mark.parametrize(
    ("owner", "name", "broken", "expected"), MUTATIONS, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_broken_rule_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Callable[[Any], Any], expected: str
) -> None:
    wrong = broken(getattr(owner, name))
    if name.startswith("_on_"):
        handlers = {
            event: wrong if handler is getattr(owner, name) else handler
            for event, handler in machine_module._HANDLERS.items()
        }
        monkeypatch.setattr(machine_module, "_HANDLERS", handlers)
    else:
        monkeypatch.setattr(owner, name, wrong)
    found = next((o.broken for seed in range(400) if (o := simulate_subtopology(seed)).broken), None)
    assert found is not None, "no seed notices it"
    assert any(part in found for part in expected.split("|")), found
