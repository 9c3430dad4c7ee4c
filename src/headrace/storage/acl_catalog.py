"""Access rules as texts under Kafka's names. One JSON file in the data directory.

`headrace-acls.json` lies beside the topic catalogue and is replaced as a whole before a change counts, so that it
survives a kill -9.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.storage.errors import DirectoryUnusable
from headrace.storage.file_system import FileSystem

__all__ = ["ACLS", "load_acls", "save_acls"]

ACLS = "headrace-acls.json"
_FORMAT = 1
_FIELDS = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")


def load_acls(file_system: FileSystem, directory: Path) -> tuple[Mapping[str, str], ...]:
    """Empty when there is no file yet. Raises DirectoryUnusable."""
    path = directory / ACLS
    try:
        stored = json.loads(file_system.read_bytes(path))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}")
        return tuple({name: str(each[name]) for name in _FIELDS} for each in stored["acls"])
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise DirectoryUnusable(
            "state-corrupt",
            f"{path} does not hold access rules of this version of Headrace ({error}).",
            "Use the version that wrote it, or another data directory.",
            path=str(path),
        ) from error


def save_acls(file_system: FileSystem, directory: Path, acls: tuple[Mapping[str, str], ...]) -> None:
    """Raises OSError; the old rules then stand."""
    stored = {"format": _FORMAT, "acls": [dict(each) for each in acls]}
    text = json.dumps(stored, indent=1, sort_keys=True) + "\n"
    file_system.write_atomically(directory / ACLS, text.encode(), sync=True)
