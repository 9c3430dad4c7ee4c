"""The line of the user's program that a call came from."""

from __future__ import annotations

import linecache
import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType

__all__ = ["call_site", "is_user_code", "shown"]

_OWN_CODE = str(Path(__file__).resolve().parent) + os.sep
_SPARK_CODE = os.sep + "pyspark" + os.sep
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep
_INSTALLED = ("site-packages", "dist-packages")


def call_site() -> str:
    """ "file:line" of the innermost frame that is neither ours nor PySpark's: the user's call."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_OWN_CODE) and _SPARK_CODE not in name and not name.endswith("contextlib.py"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?:0"


def is_user_code(filename: str) -> bool:
    """Whether a file is neither ours, PySpark's nor Python's own. Installed packages may be the user's."""
    if filename.startswith(("<frozen ", _OWN_CODE)) or _SPARK_CODE in filename:
        return False
    in_library = filename.startswith(_STANDARD_LIBRARY)
    return not in_library or any(part in filename for part in _INSTALLED)


def shown(where: str) -> str:
    """The place as a person reads it: path below the working directory, and the source line when there is one."""
    name, _, line = where.rpartition(":")
    source = linecache.getline(name, int(line)).strip()
    path = Path(name)
    if path.is_relative_to(Path.cwd()):
        name = str(path.relative_to(Path.cwd()))
    return f"{name}:{line}  {source}".rstrip()
