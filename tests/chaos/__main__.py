"""A chaos run and its verdict.

`python -m tests.chaos --minutes 10 --seed 1 --broker headrace|kafka|kafka-cluster --instances 3`

Prints each disaster as it strikes. The exit code is 0 when nothing was lost, repeated or wrong and no instance ended by
itself; else 1, and everything (logs, state directories, the data of the brokers) is kept in the directory it names.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import time

from tests.chaos.chaos import PROGRAMS, broker_of, chaos, new_directory
from tests.chaos.segments import faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of disasters; start and judgement come on top")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broker", choices=("headrace", "kafka", "kafka-cluster"), default="headrace")
    parser.add_argument("--replication-factor", type=int, default=1, help="of topics on kafka-cluster")
    parser.add_argument("--instances", type=int, default=3)
    parser.add_argument("--standbys", type=int, default=0, help="copies of each task's state on other instances")
    parser.add_argument(
        "--group-protocol", choices=("streams", "classic"), default="streams", help="classic: no streams groups"
    )
    parser.add_argument(
        "--execution", choices=("auto", "resident", "micro-batch"), default="auto", help="of the instances"
    )
    parser.add_argument(
        "--program",
        choices=tuple(PROGRAMS),
        default="flights",
        help="event-time: windows, ranks, sessions and a join; timers: of a stateful processor",
    )
    parser.add_argument("--keep", action="store_true", help="logs and data stay, also when nothing was wrong")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left behind
    directory = new_directory()
    print(f"everything is in {directory}", flush=True)
    ends: list[float] = []

    def goes_on(number: int) -> bool:
        if number == 0:
            ends.append(time.monotonic() + arguments.minutes * 60)
        return time.monotonic() < ends[0]

    with broker_of(
        arguments.broker,
        directory,
        replication_factor=arguments.replication_factor,
        standbys=arguments.standbys,
        group_protocol=arguments.group_protocol,
    ) as broker:
        outcome = chaos(
            broker,
            directory,
            seed=arguments.seed,
            instances=arguments.instances,
            goes_on=goes_on,
            execution=arguments.execution,
            program=arguments.program,
            group_protocol=arguments.group_protocol,
            standbys=arguments.standbys,
        )
    for name, times in sorted(outcome.disasters.items(), key=lambda pair: -pair[1]):
        print(f"{times:4d}  {name}")
    for name, (count, resident) in outcome.micro_batches.items():
        print(f"{name}: {count} micro-batches, {resident} of them in resident slots")
    kills = sum(times for name, times in outcome.disasters.items() if "kill -9" in name)
    print(
        f"{sum(outcome.disasters.values())} disasters, {kills} of them kills; {outcome.flights} flights, "
        f"{outcome.seconds:.0f} s, {outcome.takeovers} tasks went on from a copy, "
        f"at most {outcome.longest_rest_seconds:.1f} s without a commit of anybody; "
        f"rows {outcome.verdict}: " + ("passed" if not outcome.failures else "FAILED\n" + "\n".join(outcome.failures))
    )
    places = (directory / "data", directory / "kafka" / "data", *sorted(directory.glob("broker-*/data")))
    torn = faults(*(place for place in places if place.exists()))
    print("".join(f"{fault}\n" for fault in torn), end="")
    if outcome.failures or any("different ways" in fault for fault in torn):
        print(f"logs, state and data are in {directory}; what became of a record: python -m tests.chaos.segments")
        return 1
    if not arguments.keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
