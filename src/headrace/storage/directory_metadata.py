"""Cluster metadata of a data directory: topics, dynamic configs, SCRAM credentials, ACLs and client quotas.

Where Kafka has the `__cluster_metadata` log, this single broker has five JSON files beside the logs. Each is replaced
as a whole (written beside, fsync, rename) before the change takes effect in memory, so that it survives a kill -9. The
topic file changes before any partition directory does: directories that disagree with it are leftovers.

The identity of the directory is `headrace.properties`, Kafka's `meta.properties` under another name. A
`meta.properties` is never written: with it a real Kafka could be started on the directory, would not find our topics in
its own metadata, and would rename every partition to `-stray`. A directory that has one is Kafka's and is refused.
"""

from __future__ import annotations

import json
import re
import uuid
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from headrace.protocol.sasl import ScramCredential
from headrace.storage.checkpoint_files import format_topic_id, parse_topic_id
from headrace.storage.errors import DirectoryUnusable, InvalidTopic, StorageFull, is_disk_full
from headrace.storage.file_system import FileSystem, format_free_space

__all__ = [
    "PROPERTIES",
    "DirectoryIdentity",
    "DirectoryMetadata",
    "DynamicConfigs",
    "QuotaTable",
    "ScramCatalog",
    "TopicEntry",
    "check_topic_name",
    "load_identity",
    "load_topics",
    "save_identity",
    "save_topics",
]

TOPICS = "headrace-topics.json"
DYNAMIC_CONFIGS = "headrace-configs.json"
SCRAM_CREDENTIALS = "headrace-scram.json"
ACLS = "headrace-acls.json"
QUOTAS = "headrace-quotas.json"

_FORMAT = 1
# Kafka's rule (org.apache.kafka.common.internals.Topic). 249 characters, so that `<topic>-<partition>` and suffixes
# such as `-delete` fit the 255 bytes of a file name.
_LEGAL_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ACL_FIELDS = ("resource_type", "resource_name", "pattern_type", "principal", "host", "operation", "permission")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicEntry:
    """One topic. `configs` has only what was set for it, by Kafka's names, with values as text."""

    name: str
    topic_id: uuid.UUID
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicConfigs:
    """Settings that were changed while the broker ran, except those of topics; by Kafka's names, values as text.

    Attributes:
        groups: Group id → its settings.
        brokers: Node id → its settings; the id "" stands for all brokers.
        client_metrics: Name of a client metrics subscription → its settings (KIP-714).
        features: Feature name → finalized level.
        features_epoch: Number of changes to `features`.
    """

    groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    brokers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    client_metrics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    features_epoch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCatalog:
    """SCRAM credentials: salt, iterations, StoredKey and ServerKey, never a password. The file has mode 0600.

    Attributes:
        users: User name → mechanism ("SCRAM-SHA-512") → credential.
        secret: Random bytes of this directory. They determine the salt that an unknown user is shown, so that it is
            the same at every attempt.
    """

    users: Mapping[str, Mapping[str, ScramCredential]] = field(default_factory=dict)
    secret: bytes = b""


QuotaTable = Mapping[tuple[tuple[str, str | None], ...], Mapping[str, float]]
"""Client quotas: entity → values. An entity is its parts (type, name), ordered by type; name None is the default."""


class DirectoryMetadata:
    """The part of `LogDirectory` that holds metadata without logs: everything except topics. Mutable."""

    path: Path
    _file_system: FileSystem

    def _load_metadata(self) -> None:
        """Load the metadata. Raises DirectoryUnusable."""
        self._dynamic_configs = _load_dynamic_configs(self._file_system, self.path)
        self._scram_credentials = _load_scram_credentials(self._file_system, self.path)
        self._acls = _load_acls(self._file_system, self.path)
        self._quotas = _load_quotas(self._file_system, self.path)

    @property
    def dynamic_configs(self) -> DynamicConfigs:
        """Settings of groups and brokers, and feature levels."""
        return self._dynamic_configs

    def replace_dynamic_configs(self, configs: DynamicConfigs) -> None:
        """Replace the dynamic configs, durably. Raises StorageFull, OSError; the old ones then stay."""
        self._durably(lambda: _save_dynamic_configs(self._file_system, self.path, configs))
        self._dynamic_configs = configs

    @property
    def scram_credentials(self) -> ScramCatalog:
        """Credentials of the users that may authenticate by SCRAM."""
        return self._scram_credentials

    def replace_scram_credentials(self, catalog: ScramCatalog) -> None:
        """Replace the SCRAM credentials, durably. Raises StorageFull, OSError; the old ones then stay."""
        self._durably(lambda: _save_scram_credentials(self._file_system, self.path, catalog))
        self._scram_credentials = catalog

    @property
    def acls(self) -> tuple[Mapping[str, str], ...]:
        """ACL bindings: Kafka's field names → values as text."""
        return self._acls

    def replace_acls(self, acls: tuple[Mapping[str, str], ...]) -> None:
        """Replace the ACL bindings, durably. Raises StorageFull, OSError; the old ones then stay."""
        self._durably(lambda: _save_acls(self._file_system, self.path, acls))
        self._acls = acls

    @property
    def quotas(self) -> QuotaTable:
        """Client quotas."""
        return self._quotas

    def replace_quotas(self, quotas: QuotaTable) -> None:
        """Replace the client quotas, durably. Raises StorageFull, OSError; the old ones then stay."""
        self._durably(lambda: _save_quotas(self._file_system, self.path, quotas))
        self._quotas = quotas

    def _durably(self, write: Callable[[], _T]) -> _T:
        try:
            return write()
        except OSError as error:
            if not is_disk_full(error):
                raise
            raise StorageFull(
                "disk-full",
                f"There is no room in {self.path} ({error.strerror}{format_free_space(self._file_system, self.path)}).",
                "Free disk space and try again.",
                path=str(self.path),
            ) from error


def check_topic_name(name: str) -> None:
    """Raise InvalidTopic unless Kafka allows the name. The rule also keeps names inside the data directory."""
    if not _LEGAL_TOPIC.fullmatch(name) or name in {".", ".."}:
        raise InvalidTopic(
            "bad-value",
            f"The topic name {name!r} is illegal: allowed are 1 to 249 letters, digits, '.', '_' and '-'.",
            "Choose another name.",
            topic=name,
        )


# -- files -------------------------------------------------------------------------------------------------------------


def _load(
    path: Path,
    file_system: FileSystem,
    parse: Callable[[dict[str, Any]], _T],
    default: _T,
    contents: str,
    *,
    is_secret: bool = False,
) -> _T:
    """Return what `parse` makes of a JSON file; `default` if there is none. Raises DirectoryUnusable.

    With `is_secret` the message does not quote the error, which may quote the file.
    """
    try:
        stored = json.loads(file_system.read_bytes(path))
        if stored["format"] != _FORMAT:
            raise ValueError(f"format {stored['format']}")
        return parse(stored)
    except FileNotFoundError:
        return default
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DirectoryUnusable(
            "state-corrupt",
            f"{path} does not hold {contents} of this version of Headrace "
            f"({type(error).__name__ if is_secret else error}).",
            "Use the version that wrote it, or another data directory.",
            path=str(path),
        ) from (None if is_secret else error)


def _save(path: Path, file_system: FileSystem, stored: dict[str, Any], *, mode: int = 0o644) -> None:
    text = json.dumps({"format": _FORMAT, **stored}, indent=1, sort_keys=True) + "\n"
    file_system.write_atomically(path, text.encode(), sync=True, mode=mode)


def load_topics(file_system: FileSystem, directory: Path) -> dict[str, TopicEntry]:
    """Return the topics by name; empty if there is no file. Raises DirectoryUnusable."""

    def parse(stored: dict[str, Any]) -> dict[str, TopicEntry]:
        return {
            topic["name"]: TopicEntry(
                name=topic["name"],
                topic_id=parse_topic_id(topic["topic_id"]),
                partitions=int(topic["partitions"]),
                configs=dict(topic["configs"]),
            )
            for topic in stored["topics"]
        }

    return _load(directory / TOPICS, file_system, parse, {}, "topics")


def save_topics(file_system: FileSystem, directory: Path, topics: Iterable[TopicEntry]) -> None:
    """Replace the topic file, durably. Raises OSError; the old file then stays."""
    stored = (
        {
            "name": entry.name,
            "topic_id": format_topic_id(entry.topic_id),
            "partitions": entry.partitions,
            "configs": dict(entry.configs),
        }
        for entry in topics
    )
    # One line per topic. With `indent` the standard library encodes in pure Python, which takes ten times as long, and
    # there may be thousands of topics.
    lines = ",\n".join(map(json.dumps, stored))
    text = f'{{"format": {_FORMAT}, "topics": [\n{lines}\n]}}\n'
    file_system.write_atomically(directory / TOPICS, text.encode(), sync=True)


def _load_dynamic_configs(file_system: FileSystem, directory: Path) -> DynamicConfigs:
    def parse(stored: dict[str, Any]) -> DynamicConfigs:
        return DynamicConfigs(
            groups=_parse_settings(stored["groups"]),
            brokers=_parse_settings(stored["brokers"]),
            # Files of versions without client metrics do not have the entry.
            client_metrics=_parse_settings(stored.get("client_metrics", {})),
            features={str(name): int(level) for name, level in stored["features"].items()},
            features_epoch=int(stored["features_epoch"]),
        )

    return _load(directory / DYNAMIC_CONFIGS, file_system, parse, DynamicConfigs(), "dynamic configs")


def _parse_settings(stored: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    return {str(name): {str(key): str(value) for key, value in values.items()} for name, values in stored.items()}


def _save_dynamic_configs(file_system: FileSystem, directory: Path, configs: DynamicConfigs) -> None:
    stored = {
        "groups": {name: dict(values) for name, values in configs.groups.items()},
        "brokers": {name: dict(values) for name, values in configs.brokers.items()},
        "client_metrics": {name: dict(values) for name, values in configs.client_metrics.items()},
        "features": dict(configs.features),
        "features_epoch": configs.features_epoch,
    }
    _save(directory / DYNAMIC_CONFIGS, file_system, stored)


def _load_scram_credentials(file_system: FileSystem, directory: Path) -> ScramCatalog:
    def parse_credential(stored: Mapping[str, object]) -> ScramCredential:
        return ScramCredential(
            salt=b64decode(str(stored["salt"])),
            stored_key=b64decode(str(stored["stored_key"])),
            server_key=b64decode(str(stored["server_key"])),
            iterations=int(str(stored["iterations"])),
        )

    def parse(stored: dict[str, Any]) -> ScramCatalog:
        users = {
            str(name): {str(mechanism): parse_credential(each) for mechanism, each in mechanisms.items()}
            for name, mechanisms in stored["users"].items()
        }
        return ScramCatalog(users=users, secret=b64decode(stored["secret"]))

    path = directory / SCRAM_CREDENTIALS
    return _load(path, file_system, parse, ScramCatalog(), "SCRAM credentials", is_secret=True)


def _save_scram_credentials(file_system: FileSystem, directory: Path, catalog: ScramCatalog) -> None:
    def format_credential(credential: ScramCredential) -> dict[str, object]:
        return {
            "salt": b64encode(credential.salt).decode(),
            "stored_key": b64encode(credential.stored_key).decode(),
            "server_key": b64encode(credential.server_key).decode(),
            "iterations": credential.iterations,
        }

    stored = {
        "secret": b64encode(catalog.secret).decode(),
        "users": {
            name: {mechanism: format_credential(each) for mechanism, each in mechanisms.items()}
            for name, mechanisms in catalog.users.items()
        },
    }
    # Keys are not passwords, but an attacker who has StoredKey can try passwords offline (RFC 5802, section 9).
    _save(directory / SCRAM_CREDENTIALS, file_system, stored, mode=0o600)


def _load_acls(file_system: FileSystem, directory: Path) -> tuple[Mapping[str, str], ...]:
    def parse(stored: dict[str, Any]) -> tuple[Mapping[str, str], ...]:
        return tuple({name: str(each[name]) for name in _ACL_FIELDS} for each in stored["acls"])

    return _load(directory / ACLS, file_system, parse, (), "ACLs")


def _save_acls(file_system: FileSystem, directory: Path, acls: tuple[Mapping[str, str], ...]) -> None:
    _save(directory / ACLS, file_system, {"acls": [dict(each) for each in acls]})


def _load_quotas(file_system: FileSystem, directory: Path) -> QuotaTable:
    def parse(stored: dict[str, Any]) -> QuotaTable:
        return {
            tuple((str(kind), None if name is None else str(name)) for kind, name in each["entity"]): {
                str(name): float(value) for name, value in each["values"].items()
            }
            for each in stored["quotas"]
        }

    return _load(directory / QUOTAS, file_system, parse, {}, "client quotas")


def _save_quotas(file_system: FileSystem, directory: Path, quotas: QuotaTable) -> None:
    stored = [{"entity": [list(part) for part in entity], "values": dict(quotas[entity])} for entity in quotas]
    _save(directory / QUOTAS, file_system, {"quotas": stored})


PROPERTIES = "headrace.properties"
_IDENTITY_FORMAT = "1"


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
    if stored.get("format.version") != _IDENTITY_FORMAT:
        _refuse(path, f"its format.version is {stored.get('format.version')}, not {_IDENTITY_FORMAT}")
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
        f"format.version={_IDENTITY_FORMAT}",
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
