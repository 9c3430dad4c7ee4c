"""Seeds of the simulator: those that once broke a rule, a few for each change, and a thousand more in the full run.

PENSTOCK_FIRST_SEED and PENSTOCK_SEEDS choose others for the long test; `make simulate` runs seeds without pytest.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.simulator.simulation import simulate
from penstock.simulator.story import Outcome

FEW = 36
SEEDS = int(os.environ.get("PENSTOCK_SEEDS", "1000"))
FIRST = int(os.environ.get("PENSTOCK_FIRST_SEED", "1000"))
CHUNKS = 6
FOUND = [
    int(line.split()[0])
    for line in Path(__file__).with_name("found_seeds.txt").read_text().splitlines()
    if line and not line.startswith("#")
]


def told(outcome: Outcome) -> str:
    return f"seed {outcome.seed}: {outcome.broken}\n" + "\n".join(outcome.story[-80:])


def run(seeds: range) -> None:
    did: Counter[str] = Counter()
    for seed in seeds:
        outcome = simulate(seed)
        assert outcome.broken is None, told(outcome)
        did += outcome.did
    assert {"application_is_killed", "broker_crashes", "application_restarts", "disk_refuses"} <= did.keys()


def test_every_rule_holds() -> None:
    run(range(FEW))


@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_every_rule_holds_in_many_worlds(chunk: int) -> None:
    run(range(FIRST + chunk, FIRST + SEEDS, CHUNKS))


@pytest.mark.parametrize("seed", FOUND)
def test_what_was_found_stays_mended(seed: int) -> None:
    outcome = simulate(seed)
    assert outcome.broken is None, told(outcome)


def test_one_seed_is_one_story_whatever_the_hash_seed_of_python() -> None:
    stories = {
        subprocess.run(
            [sys.executable, "-m", "penstock.simulator", "11"],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        ).stdout
        for hash_seed in ("1", "2", "3")
    }
    assert len(stories) == 1
    assert "settled: one member less" in stories.pop()
