"""The class data archive of Spark's JVM: what it reads and checks of Spark's classes at every start, done once.

Most of the CPU of an application's start goes into loading some 16,000 classes. Java can keep them, parsed and
verified, in a file that the next JVM maps (JEP 310 and 350). `headrace prepare` makes that file; `session` names it to
the JVM. An archive that does not fit (another Java, another pyspark) is ignored by the JVM, and the start is as slow
as without one: nothing here can fail an application.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import stat
from pathlib import Path

__all__ = ["SILENT", "archive_options", "archive_path"]

SILENT = "-Xlog:cds*=off"
"""The JVM would tell at each start which archive it does not like, and at the end which classes it left out."""


def archive_path(java: str) -> Path:
    """Where the archive for this Java and this pyspark lies, whether it is there or not."""
    spark = importlib.util.find_spec("pyspark")
    home = Path(str(spark.origin)).parent if spark is not None else Path()
    stamps = [f"{path} {_changed_at(path)}" for path in (Path(java).resolve(), home / "jars", home / "version.py")]
    name = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return _cache_directory() / f"spark-classes-{name}.jsa"


def archive_options(java: str) -> str:
    """What the JVM is told on its command line; empty without an archive, or with one that others may have written."""
    path = archive_path(java)
    try:
        seen, above = path.stat(), path.parent.stat()
    except OSError:
        return ""
    others_write = stat.S_IWGRP | stat.S_IWOTH
    if any(each.st_uid not in (0, os.geteuid()) or each.st_mode & others_write for each in (seen, above)):
        return ""
    return "" if " " in str(path) else f"-XX:SharedArchiveFile={path} {SILENT}"


def _cache_directory() -> Path:
    given = os.environ.get("HEADRACE_CACHE_DIR")
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"


def _changed_at(path: Path) -> int:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime_ns
    return 0
