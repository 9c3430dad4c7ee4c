"""Many random histories: `python -m tests.durability.simulate --runs 5000 --first 0`. Prints the seeds that fail.

Progress is printed every hundred histories; ctrl-C ends the run with a summary.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback

from tests.durability.history import History

STEPS = 60


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--trace", action="store_true", help="print a traceback of each failure")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began, done, failed, lives, acknowledgements = time.monotonic(), 0, [], 0, 0
    for seed in range(arguments.first, arguments.first + arguments.runs):
        if done and done % 100 == 0:
            print(f"{done} histories, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        history = None
        try:
            history = History(seed)
            history.play(arguments.steps)
        except KeyboardInterrupt:
            break
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if arguments.trace:
                traceback.print_exc()
        done += 1
        if history is not None:
            lives += history.lives
            acknowledgements += history.acknowledgements
    seconds = time.monotonic() - began
    print(
        f"{done} histories, {lives} broker restarts, {acknowledgements} acknowledgements, "
        f"{seconds:.0f} s; failed: {failed or 'none'}"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
