"""The sticky assignor beside Kafka's own (Java, StickyTaskAssignor 4.3.1), on the same groups in one run.

1,000 members on as many processes, 10,000 tasks in 10 stateful subtopologies: all at once, one member more, one less,
nothing changed. Rounds alternate between the two; printed are medians and the ratio ours / Kafka's (below 1: faster).

    .venv/bin/python benchmarks/assignor.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.interop.assignor_peer import KafkasAssignor, OurAssignor, Peer

from headrace.coordinator.assignors.sticky_task_assignor import StickyTaskAssignor
from headrace.coordinator.assignors.task_assignor import AssignableSubtopology

MEMBERS = 1_000
SUBTOPOLOGIES = tuple(
    AssignableSubtopology(subtopology_id=f"s{number}", tasks=1_000, stateful=True) for number in range(10)
)


def everybody(peer: Peer, standbys: int) -> None:
    peer.reset(SUBTOPOLOGIES, standbys)
    for number in range(MEMBERS):
        peer.join(f"m{number:04}", f"p{number:04}")


def settled(peer: Peer, standbys: int) -> None:
    everybody(peer, standbys)
    peer.assign()


def one_more(peer: Peer, standbys: int) -> None:
    settled(peer, standbys)
    peer.join("new", "p-new")


def one_less(peer: Peer, standbys: int) -> None:
    settled(peer, standbys)
    peer.leave("m0500")


CASES: dict[str, Callable[[Peer, int], None]] = {
    "all at once": everybody,
    "one member more": one_more,
    "one member less": one_less,
    "nothing changed": settled,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    ours, assignor = OurAssignor(), StickyTaskAssignor()
    print(f"{MEMBERS} members, {sum(each.tasks for each in SUBTOPOLOGIES)} tasks; medians of {rounds} rounds")
    print(f"{'':34} {'ours':>9} {'Kafka':>9} {'ratio':>7}")
    with KafkasAssignor() as kafka:
        for standbys in (0, 1):
            for name, prepare in CASES.items():
                prepare(ours, standbys)
                prepare(kafka, standbys)
                kafka.time_us(30)  # Java compiles what is hot
                spec = ours.spec()
                our_ms, kafka_ms = [], []
                for _ in range(rounds):
                    began = time.perf_counter()
                    assignor.assign(spec)
                    our_ms.append((time.perf_counter() - began) * 1000)
                    kafka_ms.append(kafka.time_us(1)[0] / 1000)
                label = f"{name}, {standbys} standby" + ("s" if standbys != 1 else "")
                ratio = median(our_ms) / median(kafka_ms)
                print(f"{label:34} {median(our_ms):6.1f} ms {median(kafka_ms):6.1f} ms {ratio:6.2f}x")


if __name__ == "__main__":
    main()
