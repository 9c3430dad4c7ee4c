"""Class data sharing (CDS) archive for Spark's JVM: a cache of parsed and verified classes, mapped at start.

Most of the CPU time of an application's start goes into loading about 16,000 classes. Java can keep them, parsed and
verified, in a file that the next JVM maps (JEP 310 and JEP 350). `headrace prepare` writes that file; `session` passes
it to the JVM. A JVM ignores an archive that does not match its Java or pyspark version and starts without it, so an
archive can never make an application fail.
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
"""Suppresses JVM warnings about an archive that does not match, and about classes left out of a new one."""


def archive_path(java: str) -> Path:
    """Return the path of the archive for this Java and this pyspark version, whether or not the file exists."""
    spark = importlib.util.find_spec("pyspark")
    home = Path(str(spark.origin)).parent if spark is not None else Path()
    # Times of change stand for contents: hashing pyspark's jars (400 MB) at each start would cost more than the archive
    # saves.
    stamps = [f"{path} {_changed_at(path)}" for path in (Path(java).resolve(), home / "jars", home / "version.py")]
    name = hashlib.sha256("\n".join(stamps).encode()).hexdigest()[:16]
    return _cache_directory() / f"spark-classes-{name}.jsa"


def archive_options(java: str) -> str:
    """Return JVM options that use the archive.

    Empty if there is no archive, or if another user could have written it: a JVM does not verify the classes of an
    archive again.
    """
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
