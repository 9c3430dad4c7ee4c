"""Seeds of the simulator, by kind of group: those that once broke a rule, a few for each change, more in the full run.

HEADRACE_LONG runs a thousand of each kind; HEADRACE_FIRST_SEED and HEADRACE_SEEDS choose others; `make simulate` runs
seeds without pytest.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest
from tests.longer import LONG

from headrace.simulator.simulation import KINDS, simulate
from headrace.simulator.transcript import Outcome

FEW = 3
MANY = {"streams": 35, "consumer": 20, "classic": 30, "mixed": 15}
SEEDS = os.environ.get("HEADRACE_SEEDS", "1000" if LONG else None)
FIRST = int(os.environ.get("HEADRACE_FIRST_SEED", "1000"))
FOUND = [
    (int(seed), groups)
    for line in Path(__file__).with_name("found_seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for seed, groups in [line.split()[:2]]
]
DEEDS = {
    "streams": {"application_is_killed", "broker_crashes", "application_restarts", "disk_refuses"},
    "consumer": {"consumer_is_killed", "broker_crashes", "consumer_restarts", "disk_refuses", "consumer_stops_polling"},
}


def told(outcome: Outcome) -> str:
    return f"seed {outcome.seed} ({outcome.groups}): {outcome.broken}\n" + "\n".join(outcome.transcript[-80:])


def run(groups: str, seeds: range) -> Counter[str]:
    did: Counter[str] = Counter()
    for seed in seeds:
        outcome = simulate(seed, groups)
        assert outcome.broken is None, told(outcome)
        did += outcome.did
    return did


@pytest.mark.parametrize("groups", KINDS)
def test_every_rule_holds(groups: str) -> None:
    assert run(groups, range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("groups", KINDS)
def test_every_rule_holds_in_many_worlds(groups: str) -> None:
    count = MANY[groups] if SEEDS is None else int(SEEDS)
    assert DEEDS.get(groups, DEEDS["consumer"]) <= run(groups, range(FIRST, FIRST + count)).keys()


@pytest.mark.parametrize(("seed", "groups"), FOUND)
def test_seeds_with_fixed_defects_pass(seed: int, groups: str) -> None:
    outcome = simulate(seed, groups)
    assert outcome.broken is None, told(outcome)
