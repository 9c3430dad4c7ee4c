"""`python -m headrace.simulator SEED` prints the transcript of a seed; with `--seeds N --first M` it runs many."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

from headrace.simulator.simulation import KINDS, simulate
from headrace.simulator.subtopology_simulation import simulate_subtopology
from headrace.simulator.transcript import Outcome

SUBTOPOLOGY = "subtopology"
PROGRESS = 500  # seeds between two progress lines


def main() -> int:
    """Run the seeds and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.simulator", description=__doc__)
    parser.add_argument("seed", type=int, nargs="?", help="one seed, its transcript on stdout")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run, without their transcripts")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument(
        "--groups",
        choices=(*KINDS, "all", SUBTOPOLOGY),
        default="all",
        help=f"the kind of group; all: seeds take the kinds in turn; {SUBTOPOLOGY}: the machine of a Spark subtopology",
    )
    arguments = parser.parse_args()
    if arguments.seed is not None:
        outcome = _simulate(arguments.seed, arguments.groups)
        print("\n".join(outcome.transcript))
        print(f"digest {outcome.digest}")
        return _verdict([outcome])
    seeds = range(arguments.first, arguments.first + arguments.seeds)
    return _verdict(_simulate(seed, arguments.groups) for seed in seeds)


def _simulate(seed: int, groups: str) -> Outcome:
    return simulate_subtopology(seed) if groups == SUBTOPOLOGY else simulate(seed, groups)


def _verdict(outcomes: Iterable[Outcome]) -> int:
    did: Counter[str] = Counter()
    seeds = broken = checks = 0
    for outcome in outcomes:
        seeds += 1
        checks += outcome.checks
        did += outcome.did
        if outcome.broken is not None:
            broken += 1
            print(f"seed {outcome.seed} ({outcome.groups}): {outcome.broken}", file=sys.stderr, flush=True)
        if seeds % PROGRESS == 0:
            print(f"{seeds} seeds, up to {outcome.seed}: {broken} broken", file=sys.stderr, flush=True)
    actions = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in sorted(did.items()))
    print(f"{seeds} seeds, {broken} broken, {checks} checks; {actions}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
