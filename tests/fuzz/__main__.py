"""`python -m tests.fuzz`: campaigns one after another, each with its own seed and broker, until the time is over."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.campaign import Campaign, resident_mebibytes

CAMPAIGN_S = 20.0


def main() -> int:
    arguments = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    arguments.add_argument("--minutes", type=float, default=1.0)
    arguments.add_argument("--seed", type=int, default=int(time.time()))
    arguments.add_argument("--go-on", action="store_true", help="do not stop at the first finding")
    arguments.add_argument("--codes", action="store_true", help="print how often which API answered which code")
    chosen = arguments.parse_args()
    until, seed, found = time.monotonic() + 60 * chosen.minutes, chosen.seed, 0
    while time.monotonic() < until and (chosen.go_on or not found):
        with Campaign(seed) as campaign:
            outcome = campaign.run(min(CAMPAIGN_S, max(1.0, until - time.monotonic())))
        closed = ", ".join(f"{name} {count}" for name, count in outcome.closed.most_common(4))
        print(
            f"seed {seed}: {outcome.frames} frames, {outcome.answered} answered, {resident_mebibytes():.0f} MiB at most"
            + (f"; closed though whole: {closed}" if closed else ""),
            flush=True,
        )
        for name, count in sorted(outcome.codes.items()) if chosen.codes else ():
            print(f"  {count:6} {name}")
        for finding in outcome.findings[:3]:
            print(f"  FOUND {finding}", flush=True)
        found += len(outcome.findings)
        seed += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
