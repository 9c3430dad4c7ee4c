"""The machine the demo runs on, in one line; and whether it can run it at all."""

from __future__ import annotations

import os
import platform
import re
import subprocess

__all__ = ["machine_line"]


def machine_line() -> str:
    """`Python 3.11.7 · Java 17.0.15 · 2 cores · 24 GiB`. Raises ConfigError `java-missing`."""
    from headrace.spark.spark_session import check_java

    parts = [f"Python {platform.python_version()}", f"Java {_java_version(check_java())}", f"{_cores()} cores"]
    memory = _memory_gib()
    if memory:
        parts.append(f"{memory} GiB")
    return " · ".join(parts)


def _java_version(java: str) -> str:
    told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r'version "([^"]+)"', told.stderr + told.stdout)
    return match.group(1) if match else "of unknown version"


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _memory_gib() -> int:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (ValueError, OSError):
        return 0
