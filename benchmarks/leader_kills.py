"""How many partitions move when leaders of classic groups die: leader-independent, sticky, and a naive assignor.

Random histories: leaders are killed or restart (most members are static), alone or with others; members come and go.
The same histories for all three. `must` is what no assignor can avoid: what has to leave who has more than its share.
No clock in it, so the figures are the same on any machine.

    .venv/bin/python benchmarks/leader_kills.py [--histories 200] [--rounds 30]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.assignors.leader_kills import ASSIGNORS, play_leader_kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=30)
    chosen = parser.parse_args()
    print(f"{'assignor':<20} {'rebalances':>10} {'moved':>8} {'must':>8} {'beyond must':>12}")
    for name, make in ASSIGNORS.items():
        played = [play_leader_kills(make, seed, rounds=chosen.rounds) for seed in range(chosen.histories)]
        moved, must = sum(each.moved for each in played), sum(each.must for each in played)
        rebalances = sum(each.rebalances for each in played)
        print(f"{name:<20} {rebalances:>10,} {moved:>8,} {must:>8,} {moved - must:>12,}")


if __name__ == "__main__":
    main()
