"""Cost of the recorder of groups on a broker: heartbeats and rebalances with and without it, alternating.

    python benchmarks/recorder_cost.py [--rounds 7] [--cycles 60] [--seconds 1.5] [--json]

Two brokers, each a process of its own, one with `headrace.group.history.records=1000`. Each round gives both the same
load, in alternating order: steady heartbeats of 64 members of streams groups (`heartbeats.py`), then `--cycles` times a
rebalance of a consumer group: a member joins, partitions move, it commits, it leaves, partitions move back. The
recorder writes in the background, so a second passes before the broker's CPU is read, on both. Printed: medians of CPU
microseconds of the broker for a heartbeat and a rebalance, of the rates that one client sees, and their ratios.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from heartbeats import SETTINGS, Contender, cpu_seconds, headrace_broker, measure, settled_members
from tests.broker.consumer_group_member import Member

if TYPE_CHECKING:
    from headrace.broker.embedded import EmbeddedBroker

SIDES = {"off": "0", "on": "1000"}
MEMBERS, GROUPS = 64, 8
# A second covers two intervals of the recorder's background task.
BACKGROUND_SECONDS = 1.0


def main() -> None:
    arguments = parse_arguments()
    figures: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with contextlib.ExitStack() as running:
        sides = {
            side: running.enter_context(
                headrace_broker(
                    {
                        **SETTINGS,
                        "group.consumer.assignment.interval.ms": 0,
                        # Steady members rest while the groups of others rebalance.
                        "group.streams.session.timeout.ms": 600_000,
                        "group.streams.max.session.timeout.ms": 600_000,
                        "headrace.group.history.records": records,
                    }
                )
            )
            for side, records in SIDES.items()
        }
        for contender in sides.values():
            contender.loads = settled_members(contender.port, GROUPS, MEMBERS)
        for number in range(arguments.rounds + 1):
            for side in ("off", "on") if number % 2 else ("on", "off"):
                found = {
                    **heartbeat_figures(sides[side], arguments.seconds),
                    **rebalance_figures(sides[side], arguments.cycles),
                }
                # The first round loads modules and makes the topics.
                if number:
                    figures[side].append(found)
    report(figures, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cycles", type=int, default=60, help="joins and leaves in a round (60)")
    parser.add_argument("--seconds", type=float, default=1.5, help="of heartbeats in a round (1.5)")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def heartbeat_figures(contender: Contender, seconds: float) -> dict[str, float]:
    found = measure(contender, 1, seconds)
    return {
        "heartbeats per second": found["heartbeats_per_second"],
        "CPU µs per heartbeat": 1e6 / found["heartbeats_per_cpu_second"],
    }


def rebalance_figures(contender: Contender, cycles: int) -> dict[str, float]:
    # A member needs the port of a broker and no more of it.
    broker = cast("EmbeddedBroker", contender)
    with Member(broker, "stays") as stays:
        settle(stays)
        before, began = cpu_seconds(contender.pid), time.perf_counter()
        for number in range(cycles):
            with Member(broker, f"comes-{number}") as comes:
                settle(stays, comes)
                stays.commit(number)
                comes.commit(number)
                comes.leave()
            settle(stays)
        took = time.perf_counter() - began
        time.sleep(BACKGROUND_SECONDS)
        cpu = cpu_seconds(contender.pid) - before
        stays.leave()
    return {"rebalances per second": 2 * cycles / took, "CPU µs per rebalance": cpu / (2 * cycles) * 1e6}


def settle(*members: Member) -> None:
    """Beat until all partitions are assigned, and each member has its share."""
    for _ in range(100):
        for member in members:
            member.beat()
        counts = [len(member.assigned) for member in members]
        if sum(counts) == MEMBERS and max(counts) - min(counts) <= 1:
            return
    raise SystemExit(f"The group does not settle: {counts} partitions")


def report(figures: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    names = list(figures["on"][0])
    medians = {
        side: {name: statistics.median(each[name] for each in rounds) for name in names}
        for side, rounds in figures.items()
    }
    ratios = {
        name: statistics.median(on[name] / off[name] for on, off in zip(figures["on"], figures["off"], strict=True))
        for name in names
    }
    if arguments.json:
        print(json.dumps({"benchmark": "recorder_cost", "medians": medians, "ratios": ratios, "rounds": figures}))
        return
    print(f"recorder of groups, medians of {arguments.rounds} rounds; ratio: median of the rounds' ratios")
    print(f"  {'':<24} {'off':>10} {'on':>10} {'on / off':>9}   of the rounds")
    for name in names:
        pairs = sorted(on[name] / off[name] for on, off in zip(figures["on"], figures["off"], strict=True))
        print(
            f"  {name:<24} {medians['off'][name]:>10,.1f} {medians['on'][name]:>10,.1f} {ratios[name]:>9.2f}   "
            f"{pairs[0]:.2f} to {pairs[-1]:.2f}"
        )


if __name__ == "__main__":
    main()
