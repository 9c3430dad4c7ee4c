"""What operators changed while the broker ran: settings of groups and brokers, levels of features. One JSON file.

`headrace-configs.json` lies beside the topic catalogue (which holds the topics' own settings) and is replaced as a
whole before a change counts, so that it survives a kill -9.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.storage.errors import DirectoryUnusable
from headrace.storage.file_system import FileSystem

__all__ = ["CONFIGURATIONS", "ConfigurationCatalog", "load_configurations", "save_configurations"]

CONFIGURATIONS = "headrace-configs.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigurationCatalog:
    """Values as text under Kafka's names. `brokers`: by node id, "" for all brokers. `features`: name → level;
    `features_epoch` counts their changes."""

    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    features_epoch: int = 0


def load_configurations(file_system: FileSystem, directory: Path) -> ConfigurationCatalog:
    """Empty when there is no file yet. Raises DirectoryUnusable."""
    path = directory / CONFIGURATIONS
    try:
        stored = json.loads(file_system.read_bytes(path))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}")
        return ConfigurationCatalog(
            groups=_by_name(stored["groups"]),
            brokers=_by_name(stored["brokers"]),
            features={str(name): int(level) for name, level in stored["features"].items()},
            features_epoch=int(stored["features_epoch"]),
        )
    except FileNotFoundError:
        return ConfigurationCatalog()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DirectoryUnusable(
            "state-corrupt",
            f"{path} is not a configuration catalog of this version of Headrace ({error}).",
            "Use the version that wrote it, or another data directory.",
            path=str(path),
        ) from error


def save_configurations(file_system: FileSystem, directory: Path, catalog: ConfigurationCatalog) -> None:
    """Raises OSError; the old catalog then stands."""
    stored = {
        "format": _FORMAT,
        "groups": {name: dict(values) for name, values in catalog.groups.items()},
        "brokers": {name: dict(values) for name, values in catalog.brokers.items()},
        "features": dict(catalog.features),
        "features_epoch": catalog.features_epoch,
    }
    text = json.dumps(stored, indent=1, sort_keys=True) + "\n"
    file_system.write_atomically(directory / CONFIGURATIONS, text.encode(), sync=True)


def _by_name(stored: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    return {str(name): {str(key): str(value) for key, value in values.items()} for name, values in stored.items()}
