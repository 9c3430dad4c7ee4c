"""Internal topics as an upgrade reads, saves, replaces and restores them. Needs Arrow: imported when used."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.cli.upgrade.saved_state import SavedState, SavedTopic
from headrace.cli.upgrade.state_plan import InternalTopic
from headrace.client.fetcher import Fetcher
from headrace.client.producer import Producer
from headrace.errors import BrokerError, HeadraceError
from headrace.spark.runtime.rows.row_conversion import convert_rows
from headrace.spark.runtime.rows.row_schema import StoredSchema, schemas_by_changelog
from headrace.spark.runtime.rows.rows import SCHEMA_KEY
from headrace.spark.runtime.stores.stored_schemas import first_rows, publish_schema

if TYPE_CHECKING:
    from headrace.cli.upgrade.group_state import GroupState
    from headrace.client.admin import Admin
    from headrace.spark.topology.nodes import CompiledTopology

__all__ = ["look_at_internal_topics", "offsets_of", "replace_topics", "restore_topics", "save_topics"]

_OF_THE_TOPIC = 1  # Kafka's number for a setting of the topic itself
_DELETION_S = 60.0
_PAUSE_S = 0.1


def look_at_internal_topics(admin: Admin, state: GroupState, program: CompiledTopology) -> tuple[InternalTopic, ...]:
    """The changelogs and repartition topics that exist, of the group and of the program."""
    schemas = schemas_by_changelog(program)
    changelogs = state.changelog_topics | set(schemas)
    topics = admin.describe_topics(sorted(changelogs | state.repartition_topics))
    first = first_rows(admin.client, [name for name in topics if name in changelogs])
    configs = admin.describe_configs([("topic", name) for name in topics]) if topics else {}
    return tuple(
        InternalTopic(
            kind="changelog" if name in changelogs else "repartition",
            name=name,
            partitions=len(topic.partitions),
            replication_factor=max(len(nodes) for nodes in topic.replicas.values()),
            configs={
                entry.name: entry.value
                for entry in configs["topic", name].values()
                if entry.source == _OF_THE_TOPIC and entry.value is not None
            },
            stored=_stored(name, first[name]) if name in changelogs else None,
            program=schemas.get(name),
        )
        for name, topic in sorted(topics.items())
    )


def _stored(name: str, first: tuple[bytes | None, bytes | None] | None) -> StoredSchema | None:
    if first is None:
        return None
    key, value = first
    if key is None or value is None or not key.startswith(SCHEMA_KEY):
        raise HeadraceError(
            "state-schema-changed",
            f"{name} begins with a row and not with the schema of its rows: their content cannot be read",
            "Start the version that wrote it, or delete the topic and reset the group's offsets.",
        )
    return StoredSchema.from_value(value)


def save_topics(admin: Admin, saved: SavedState) -> int:
    """Write the records to files; how many there are. A file is complete when it has its name."""
    Path(saved.directory).mkdir(parents=True, exist_ok=True)
    return sum(
        _save_partition(admin, topic, partition, _file_of(saved, topic, partition))
        for topic in saved.topics
        for partition in range(topic.partitions)
    )


def _file_of(saved: SavedState, topic: SavedTopic, partition: int) -> Path:
    return Path(saved.directory) / f"{topic.name}-{partition}.arrow"


_SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("timestamp", pa.int64())])


def _save_partition(admin: Admin, topic: SavedTopic, partition: int, path: Path) -> int:
    where = (topic.name, partition)
    # Of a repartition topic only what the group has not read yet is saved; of a changelog everything, since every
    # record may be the last one of its key.
    first = max(admin.list_offsets({where: "earliest"})[where].offset, topic.starts.get(str(partition), 0))
    # The last stable offset: records of a transaction that never committed are not part of the state. All members have
    # left, so no open transaction of theirs is still to come.
    end = admin.list_offsets({where: "latest"}, isolation_level="read_committed")[where].offset
    temporary, count = path.with_suffix(".tmp"), 0
    with pa.OSFile(str(temporary), "wb") as file, pa.ipc.new_stream(file, _SCHEMA) as writer:
        ranges = {where: (first, end)} if first < end else {}
        for batch in (
            Fetcher(admin.client).fetch_ranges(ranges, columns=("key", "value", "timestamp")) if ranges else ()
        ):
            table = batch.table.select(_SCHEMA.names)
            columns = [_cast(table.column(name), _SCHEMA.field(name).type) for name in _SCHEMA.names]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA))
            count += table.num_rows
    # The final name marks a complete file: an interrupted run leaves `.tmp` files, which the next one overwrites.
    temporary.replace(path)
    return count


def _cast(column: Any, wanted: pa.DataType) -> Any:
    return column if column.type == wanted else column.cast(wanted)


def replace_topics(admin: Admin, saved: SavedState) -> None:
    """The internal topics as the new version is to find them."""
    for topic in saved.topics:
        if not topic.replaced:
            continue
        _make_anew(admin, topic)
        # With `recompute` the sources are read again from the beginning and fill the topic anew; with `keep` the
        # records that waited are put back.
        if topic.kind == "repartition":
            if saved.choice == "keep":
                _write(admin, saved, topic, _unchanged)
            continue
        if topic.new is None:
            continue
        new = StoredSchema.from_value(topic.new.encode())
        # The schema record is the first record of a changelog: a restore reads it before any row (`stored_schemas`).
        publish_schema(admin.client, topic.name, new)
        if saved.choice == "keep" and topic.old is not None:
            old = StoredSchema.from_value(topic.old.encode())
            _write(admin, saved, topic, functools.partial(convert_rows, old=old.state, new=new.state))


def restore_topics(admin: Admin, saved: SavedState) -> None:
    """All internal topics as they were saved."""
    # All files are looked for before the first topic is deleted: a directory that was moved must not cost the present
    # state.
    for topic in saved.topics:
        for partition in range(topic.partitions):
            if not _file_of(saved, topic, partition).is_file():
                raise HeadraceError(
                    "save-file-bad",
                    f"there is no {_file_of(saved, topic, partition)}: the records of {topic.name} cannot be restored",
                    "put the directory back to where it was when the upgrade saved it",
                )
    for topic in saved.topics:
        _make_anew(admin, topic)
        if topic.old is not None:
            publish_schema(admin.client, topic.name, StoredSchema.from_value(topic.old.encode()))
        _write(admin, saved, topic, _unchanged)


def _unchanged(values: pa.Array) -> pa.Array:
    return values


def _make_anew(admin: Admin, topic: SavedTopic) -> None:
    """Delete and create; Kafka deletes in the background."""
    before = admin.describe_topics([topic.name]).get(topic.name)
    admin.delete_topics([topic.name], missing_ok=True)
    # 1. Apache Kafka answers DeleteTopics before its brokers have removed the logs; a creation in between fails with
    #    TOPIC_ALREADY_EXISTS and is repeated.
    deadline = time.monotonic() + _DELETION_S
    while True:
        try:
            admin.create_topics(
                {topic.name: topic.partitions},
                configs={topic.name: dict(topic.configs)},
                replication_factor=topic.replication_factor,
            )
            break
        except BrokerError as error:
            if error.code != "topic-exists" or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)
    # 2. The creation is answered by the controller; brokers learn of it later. Records that are produced by the old
    #    metadata could be lost with the old topic, so wait until the client sees another topic id.
    while True:
        found = admin.client.known_topics([topic.name], refresh=True).topics[topic.name]
        if before is None or found.topic_id != before.topic_id or time.monotonic() > deadline:
            return
        time.sleep(_PAUSE_S)


def _write(admin: Admin, saved: SavedState, topic: SavedTopic, convert: Callable[[pa.Array], pa.Array]) -> None:
    producer = Producer(admin.client)
    for partition in range(topic.partitions):
        for rows in _read(_file_of(saved, topic, partition)):
            keys, values = rows.column("key"), convert(rows.column("value"))
            producer.send(topic.name, partition, keys, values, timestamps_ms=rows.column("timestamp"))
    producer.flush()


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    """The saved rows, without schema records: those are published apart."""
    with pa.memory_map(str(path)) as file, pa.ipc.open_stream(file) as reader:
        for batch in reader:
            is_schema = pc.starts_with(batch.column("key"), SCHEMA_KEY).fill_null(fill_value=False)
            rows = batch.filter(pc.invert(is_schema))
            if rows.num_rows:
                yield rows


def offsets_of(
    admin: Admin, topics: Mapping[str, Any], names: frozenset[str], which: str
) -> dict[tuple[str, int], int]:
    """ "earliest" or "latest" of all partitions of these topics."""
    wanted = [(name, partition) for name in sorted(names) if name in topics for partition in topics[name].partitions]
    found = admin.list_offsets(dict.fromkeys(wanted, which)) if wanted else {}
    return {where: row.offset for where, row in found.items()}
