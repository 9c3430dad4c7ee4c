"""Identity of a data directory: `headrace.properties`, as Kafka's `meta.properties` of another name.

A `meta.properties` is never written: with it a real Kafka could be started on the directory, would not find our topics
in its own metadata, and would rename every partition to `-stray`. A directory that has one is Kafka's and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.storage.errors import DirectoryUnusable
from headrace.storage.file_system import FileSystem

__all__ = ["PROPERTIES", "DirectoryIdentity", "load_identity", "save_identity"]

PROPERTIES = "headrace.properties"
_FORMAT = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryIdentity:
    """Contents of `headrace.properties`.

    Attributes:
        cluster_id: Id of the cluster.
        broker_epoch: Number of starts, 1 during the first.
        next_producer_id: First producer id that was never reserved.
    """

    cluster_id: str
    broker_epoch: int = 0
    next_producer_id: int = 0

    def for_next_start(self) -> DirectoryIdentity:
        """Return the identity with the broker epoch of the next start."""
        return replace(self, broker_epoch=self.broker_epoch + 1)


def load_identity(file_system: FileSystem, directory: Path) -> DirectoryIdentity | None:
    """Return the identity; None for a new directory. Raises DirectoryUnusable, OSError."""
    path = directory / PROPERTIES
    try:
        text = file_system.read_bytes(path).decode()
    except FileNotFoundError:
        # Looked for only where our own file is missing: a directory that has both is ours.
        if file_system.exists(directory / "meta.properties"):
            raise DirectoryUnusable(
                "state-corrupt",
                f"{directory} is a data directory of Apache Kafka (it holds meta.properties).",
                "Choose another directory; topics are copied over the protocol, not by directory.",
                path=str(directory),
            ) from None
        return None
    stored = _parse_properties(text)
    if stored.get("format.version") != _FORMAT:
        _refuse(path, f"its format.version is {stored.get('format.version')}, not {_FORMAT}")
    try:
        return DirectoryIdentity(
            cluster_id=stored["cluster.id"],
            broker_epoch=int(stored["broker.epoch"]),
            next_producer_id=int(stored["next.producer.id"]),
        )
    except (KeyError, ValueError) as error:
        _refuse(path, f"a property is missing or invalid: {error}")
        raise


def save_identity(file_system: FileSystem, directory: Path, identity: DirectoryIdentity) -> None:
    """Replace the file, durably. Raises OSError."""
    lines = [
        "# A data directory of Headrace's embedded broker. Its topics are listed in headrace-topics.json.",
        f"format.version={_FORMAT}",
        f"cluster.id={identity.cluster_id}",
        f"broker.epoch={identity.broker_epoch}",
        f"next.producer.id={identity.next_producer_id}",
    ]
    file_system.write_atomically(directory / PROPERTIES, ("\n".join(lines) + "\n").encode(), sync=True)


def _parse_properties(text: str) -> Mapping[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _refuse(path: Path, why: str) -> None:
    raise DirectoryUnusable(
        "state-corrupt",
        f"{path} cannot be used: {why}.",
        "Use the version of Headrace that wrote it, or another data directory.",
        path=str(path),
    )
