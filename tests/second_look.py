"""Tests that failed in the whole run, once more, alone: `python -m tests.second_look CACHE_DIRECTORY`.

The whole run has four workers, Apache Kafka, Spark and foreign clients on two shared cores, where now and then one of
them is starved. As in Apache Kafka's own build a failure is looked at a second time, if it is one of few: what passes
alone is told at the end, loudly, and is a fault to be mended; what fails again, fails. The fast tests, which wait for
nobody, have no second look.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MOST = 3


def main(cache_directory: Path) -> int:
    """The exit code: 0 when all of at most MOST failed tests pass alone."""
    failed = list(json.loads((cache_directory / "v/cache/lastfailed").read_text()))
    if len(failed) > MOST:
        print(f"No second look: {len(failed)} tests failed, more than {MOST}.", file=sys.stderr)
        return 1
    print(f"A second look at {len(failed)}, alone: {', '.join(failed)}", file=sys.stderr)
    code = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *failed], check=False).returncode
    if code == 0:
        print("UNSTEADY: failed in the whole run, passed alone:", *failed, sep="\n  ", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
