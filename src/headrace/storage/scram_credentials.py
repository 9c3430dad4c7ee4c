"""SCRAM credentials of users: salt, iterations, StoredKey and ServerKey, never a password. One JSON file, mode 0600.

`headrace-scram.json` lies beside the topic catalogue and is replaced as a whole before a change counts, so that it
survives a kill -9. `secret` is random bytes of this directory: what a user who does not exist is asked stays the same.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from headrace.protocol.sasl.scram_credential import ScramCredential
from headrace.storage.errors import DirectoryUnusable
from headrace.storage.file_system import FileSystem

__all__ = ["SCRAM_CREDENTIALS", "ScramCatalog", "load_scram_catalog", "save_scram_catalog"]

SCRAM_CREDENTIALS = "headrace-scram.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCatalog:
    """User name → mechanism ("SCRAM-SHA-512") → credential."""

    users: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict)
    secret: bytes = b""


def load_scram_catalog(file_system: FileSystem, directory: Path) -> ScramCatalog:
    """Empty when there is no file yet. Raises DirectoryUnusable."""
    path = directory / SCRAM_CREDENTIALS
    try:
        stored = json.loads(file_system.read_bytes(path))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}")
        users = {
            str(name): {str(mechanism): _credential(each) for mechanism, each in mechanisms.items()}
            for name, mechanisms in stored["users"].items()
        }
        return ScramCatalog(users=users, secret=b64decode(stored["secret"]))
    except FileNotFoundError:
        return ScramCatalog()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DirectoryUnusable(
            "state-corrupt",
            f"{path} does not hold SCRAM credentials of this version of Headrace ({type(error).__name__}).",
            "Use the version that wrote it, or another data directory.",
            path=str(path),
        ) from None


def save_scram_catalog(file_system: FileSystem, directory: Path, catalog: ScramCatalog) -> None:
    """Raises OSError; the old catalog then stands."""
    stored = {
        "format": _FORMAT,
        "secret": b64encode(catalog.secret).decode(),
        "users": {
            name: {mechanism: _document(each) for mechanism, each in mechanisms.items()}
            for name, mechanisms in catalog.users.items()
        },
    }
    text = json.dumps(stored, indent=1, sort_keys=True) + "\n"
    file_system.write_atomically(directory / SCRAM_CREDENTIALS, text.encode(), sync=True, mode=0o600)


def _credential(stored: Mapping[str, object]) -> ScramCredential:
    return ScramCredential(
        salt=b64decode(str(stored["salt"])),
        stored_key=b64decode(str(stored["stored_key"])),
        server_key=b64decode(str(stored["server_key"])),
        iterations=int(str(stored["iterations"])),
    )


def _document(credential: ScramCredential) -> dict[str, object]:
    return {
        "salt": b64encode(credential.salt).decode(),
        "stored_key": b64encode(credential.stored_key).decode(),
        "server_key": b64encode(credential.server_key).decode(),
        "iterations": credential.iterations,
    }
