"""A small file system of its own, for tests of a disk that is full."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["mounted_small_disk"]


@contextlib.contextmanager
def mounted_small_disk(place: Path, size: str) -> Iterator[Path]:
    """Mount a tmpfs of `size` ("4m") at the directory `place`; skip the test where mounting is not permitted."""
    place.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)]
    try:
        permitted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        permitted = False
    if not permitted:
        pytest.skip("mounting a small tmpfs is not permitted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # another process may hold a file open
