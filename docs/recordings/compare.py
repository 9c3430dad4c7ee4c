"""Pictures of texts before and after a change: `python -m docs.recordings.compare BEFORE AFTER TARGET`.

The first two are directories with the captured output of the same programs, in files of the same names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.recordings.terminal_session import screen_of
from docs.recordings.terminal_svg import still

COLUMNS = 110


def main(before: Path, after: Path, target: Path) -> int:
    """Write one picture for every text that is in both directories; return the exit code."""
    names = sorted({path.name for path in before.glob("*.txt")} & {path.name for path in after.glob("*.txt")})
    if not names:
        print(f"No file of the same name in {before} and {after}.", file=sys.stderr)
        return 1
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        panels = [
            (label, screen_of((directory / name).read_text(), columns=COLUMNS))
            for label, directory in (("before", before), ("after", after))
        ]
        picture = target / f"{Path(name).stem}.svg"
        picture.write_text(still(panels, COLUMNS))
        print(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:4])))
