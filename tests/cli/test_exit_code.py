"""The code with which a program ends after an interruption."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
from headrace.cli.terminal import end_with
try:
    exec("raise KeyboardInterrupt")
except KeyboardInterrupt:
    pass
end_with(130)
"""


def test_an_interrupt_in_the_middle_of_an_import_does_not_change_it(tmp_path: Path) -> None:
    (tmp_path / "interrupted.py").write_text(PROGRAM)
    ended = subprocess.run([sys.executable, "-m", "interrupted"], cwd=tmp_path, check=False)
    assert ended.returncode == 130
