"""Client quotas: entity → values. One JSON file in the data directory.

`headrace-quotas.json` lies beside the topic catalogue and is replaced as a whole before a change counts, so that it
survives a kill -9. An entity is its parts (type, name; a name of None is the default), ordered by type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from headrace.storage.errors import DirectoryUnusable
from headrace.storage.file_system import FileSystem

__all__ = ["QUOTAS", "QuotaTable", "load_quotas", "save_quotas"]

QUOTAS = "headrace-quotas.json"
_FORMAT = 1

QuotaTable = Mapping[tuple[tuple[str, str | None], ...], Mapping[str, float]]


def load_quotas(file_system: FileSystem, directory: Path) -> QuotaTable:
    """Empty when there is no file yet. Raises DirectoryUnusable."""
    path = directory / QUOTAS
    try:
        stored = json.loads(file_system.read_bytes(path))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}")
        return {
            tuple((str(kind), None if name is None else str(name)) for kind, name in each["entity"]): {
                str(name): float(value) for name, value in each["values"].items()
            }
            for each in stored["quotas"]
        }
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DirectoryUnusable(
            "state-corrupt",
            f"{path} does not hold client quotas of this version of Headrace ({error}).",
            "Use the version that wrote it, or another data directory.",
            path=str(path),
        ) from error


def save_quotas(file_system: FileSystem, directory: Path, quotas: QuotaTable) -> None:
    """Raises OSError; the old quotas then stand."""
    stored = {
        "format": _FORMAT,
        "quotas": [{"entity": [list(part) for part in entity], "values": dict(quotas[entity])} for entity in quotas],
    }
    text = json.dumps(stored, indent=1, sort_keys=True) + "\n"
    file_system.write_atomically(directory / QUOTAS, text.encode(), sync=True)
