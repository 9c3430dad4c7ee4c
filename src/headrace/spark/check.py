"""Preflight checks of the cluster, the topics, the disk and the Spark session, made before an application runs.

All findings are returned and none is raised: a preflight that stopped at the first problem would hide the second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.client.admin import Admin
from headrace.client.broker_errors import unknown_topic_error
from headrace.client.cluster_metadata import TopicMetadata
from headrace.client.membership.streams_protocol import parse_group_protocol
from headrace.client.network_client import NetworkClient
from headrace.client.protocol_choice import find_group_protocol, has_classic_members
from headrace.errors import HeadraceError, SinkError
from headrace.spark.cluster_masters import cores_for_each, is_cluster, refuse_on_cluster, slots_on_cluster
from headrace.spark.findings import Finding
from headrace.spark.internal_topics import unsafe_internal_topics
from headrace.spark.sinks.database import DatabaseSink
from headrace.spark.sinks.delta import DeltaSink
from headrace.spark.sinks.iceberg import IcebergSink
from headrace.spark.sinks.parquet import ParquetSink
from headrace.spark.spark_session import missing_settings
from headrace.spark.topology.nodes import CompiledTopology, TableSink, TopicSink, TopicSource
from headrace.spark.unsupported import shown

if TYPE_CHECKING:
    from headrace.spark.application_declaration import ApplicationDeclaration

__all__ = ["Finding", "check"]

_LOOKED_AT = 20  # newest records of each partition that are decoded
_REACH_MS = 5_000


def check(app: ApplicationDeclaration) -> list[Finding]:
    """Return all findings for `app`, problems first."""
    findings = [*_state_directory(app), *_session(app)]
    try:
        compiled = app.compile()
    except HeadraceError as error:
        return _ordered([*findings, _problem(error)])
    # Needs no cluster, so it is reported also if none can be reached.
    findings += [*_tables(compiled), *_executors(app, compiled)]
    try:
        with app.network_client("headrace-check", api_timeout_ms=_REACH_MS) as client:
            findings += _cluster(app, compiled, client)
    except HeadraceError as error:
        findings.append(_problem(error))
    return _ordered(findings)


def _cluster(app: ApplicationDeclaration, compiled: CompiledTopology, client: NetworkClient) -> Iterator[Finding]:
    admin = Admin(client)
    known = admin.list_topics()
    yield Finding(level="ok", code="reachable", message=f"{app.bootstrap_servers} answers; {len(known)} topics")
    # Each check on its own: a missing right for one of them must not hide the others.
    yield from _guarded(lambda: _protocol(app, client))
    yield from _guarded(lambda: _group(app, admin))
    yield from _guarded(lambda: _stored_state(app, compiled, client))
    sources = [source for part in compiled.subtopologies for source in part.sources if isinstance(source, TopicSource)]
    for source in sources:
        yield from _source_topics(source, known, app.bootstrap_servers)
    for sink in compiled.topic_sinks():
        yield from _sink_topic(sink, known)
        yield from _guarded(lambda sink=sink: _sink_schema(sink))  # type: ignore[misc]
    yield from _guarded(lambda: _internal_topics(app, compiled, admin))
    for source in sources:
        if all(topic in known for topic in source.topics):
            yield from _guarded(lambda source=source: _last_records(admin, source, known))  # type: ignore[misc]


def _guarded(look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield the findings of one check. An exception in it becomes a finding, so the other checks still run."""
    try:
        yield from list(look())
    except HeadraceError as error:
        yield _problem(error)


def _protocol(app: ApplicationDeclaration, client: NetworkClient) -> Iterator[Finding]:
    """Yield the group protocol of the application on this cluster, and why."""
    wanted = parse_group_protocol(str(app.config["group.protocol"]), member="a StreamsApp")
    offered = find_group_protocol(client, app.name)
    if wanted == "streams" and offered.protocol == "classic":
        yield Finding(
            level="problem",
            code="streams-protocol-off",
            message=f"the application is set to streams groups on {app.bootstrap_servers}, and {offered.reason}",
            fix='group_protocol="auto", which shares the tasks in a classic group; or Kafka 4.2 or later with  '
            "kafka-features upgrade --feature streams.version=1",
        )
    elif wanted == "classic" or offered.protocol == "classic":
        reason = "group.protocol is classic" if wanted == "classic" else offered.reason
        yield Finding(level="ok", code="classic-protocol", message=f"tasks will be shared in a classic group: {reason}")
    else:
        yield Finding(level="ok", code="streams-protocol", message="streams groups are offered (KIP-1071)")


def _group(app: ApplicationDeclaration, admin: Admin) -> Iterator[Finding]:
    listed = next((group for group in admin.list_groups() if group.group_id == app.name), None)
    if listed is None:
        yield Finding(level="ok", code="group", message=f'no group "{app.name}" yet; it will be created')
        return
    # Brokers before Apache Kafka 3.8 name no type: all of their groups are classic ones.
    kind = listed.group_type.lower() or "classic"
    wanted = parse_group_protocol(str(app.config["group.protocol"]), member="a StreamsApp")
    chosen = find_group_protocol(admin.client, app.name, wanted).protocol
    is_empty = listed.state == "Empty"
    is_ours = kind == "streams" or (kind == "classic" and has_classic_members(admin.client, app.name))
    # A group without members changes its kind with the first join; its offsets stay.
    if (is_empty and kind in {"streams", "classic"}) or (is_ours and kind == chosen):
        yield Finding(level="ok", code="group", message=f'group "{app.name}" is a {kind} group, {listed.state}')
        return
    if is_ours:
        fix = f'stop all instances first, or group_protocol="{kind}"'
        message = f'"{app.name}" is a {kind} group with running members, and this application is set to {chosen} groups'
    else:
        message = f'"{app.name}" is already a {kind} group ({listed.state}); an application needs a name of its own'
        fix = f'another name: StreamsApp("{app.name}-app"); or stop its consumers, wait until it is empty' + (
            f", then:  headrace upgrade {app.name}" if kind == "consumer" else ""
        )
    yield Finding(level="problem", code="group-kind", message=message, fix=fix)


def _stored_state(app: ApplicationDeclaration, compiled: CompiledTopology, client: NetworkClient) -> Iterator[Finding]:
    """Yield a finding if the changelogs hold rows with another schema than this program stores."""
    from headrace.spark.runtime.stores.stored_schemas import StoredSchemas

    for topic in StoredSchemas(app.name, compiled).check(client):
        yield Finding(level="ok", code="state-schema", message=f"{topic} holds the columns that this program keeps")


def _source_topics(
    source: TopicSource, known: Mapping[str, TopicMetadata], bootstrap_servers: str
) -> Iterator[Finding]:
    for topic in source.topics:
        if topic in known:
            yield Finding(level="ok", code="topic", message=f"{topic}: {len(known[topic].partitions)} partitions")
            continue
        missing = unknown_topic_error(topic, known, bootstrap_servers)
        yield Finding(
            level="problem",
            code=missing.code,
            message=f"source {missing.message}",
            fix=missing.fix,
            where=shown(source.where),
        )
    # A note and no problem: task p reads partition p of each topic that has one.
    counts = {len(known[topic].partitions) for topic in source.topics if topic in known}
    if len(counts) > 1:
        yield Finding(
            level="note",
            code="partition-counts",
            message=f"the topics of {source.name} have {', '.join(map(str, sorted(counts)))} partitions: "
            "some tasks read fewer topics",
            where=shown(source.where),
        )


def _sink_topic(sink: TopicSink, known: Mapping[str, TopicMetadata]) -> Iterator[Finding]:
    if sink.topic in known:
        have = len(known[sink.topic].partitions)
        if sink.partitions is not None and sink.partitions != have:
            yield Finding(
                level="note",
                code="partition-counts",
                message=f"{sink.topic} has {have} partitions; partitions={sink.partitions} counts only at its creation",
                where=shown(sink.where),
            )
        else:
            yield Finding(level="ok", code="topic", message=f"{sink.topic}: {have} partitions")
    elif sink.partitions is not None:
        yield Finding(
            level="ok", code="topic", message=f"{sink.topic} will be created with {sink.partitions} partitions"
        )
    else:
        yield Finding(
            level="problem",
            code="topic-missing",
            message=f'sink topic "{sink.topic}" does not exist, and nothing says that it may be created',
            fix=f'.to_topic("{sink.topic}", partitions=8)',
            where=shown(sink.where),
        )


def _sink_schema(sink: TopicSink) -> Iterator[Finding]:
    for serde in sink.registered_serdes:
        from headrace.spark.formats.schema_registry import check_registrable

        check_registrable(serde)
        yield Finding(
            level="ok", code="schema", message=f'{sink.topic}: the subject "{serde.subject}" takes its schema'
        )


def _internal_topics(app: ApplicationDeclaration, compiled: CompiledTopology, admin: Admin) -> Iterator[Finding]:
    for topic in unsafe_internal_topics(admin, compiled.description(), app.bootstrap_servers):
        yield Finding(level="problem", code="internal-topic-unsafe", message=topic.message, fix=topic.fix)


def _last_records(admin: Admin, source: TopicSource, known: Mapping[str, TopicMetadata]) -> Iterator[Finding]:
    from headrace.client.fetcher import Fetcher
    from headrace.spark import formats

    places = [(topic, partition) for topic in source.topics for partition in known[topic].partitions]
    # Only the newest records are decoded: they were written by the programs that run now, and a check must be short.
    first = admin.list_offsets(dict.fromkeys(places, "earliest"))
    last = admin.list_offsets(dict.fromkeys(places, "latest"))
    ranges = {p: (max(first[p].offset, last[p].offset - _LOOKED_AT), last[p].offset) for p in places}
    ranges = {place: span for place, span in ranges.items() if span[0] < span[1]}
    good = 0
    for fetched in Fetcher(admin.client).fetch_ranges(ranges):
        decoded = formats.decode(fetched.table, source, topic=fetched.topic, partition=fetched.partition)
        good += fetched.table.num_rows - len(decoded.bad_rows)
        # One of each partition is enough to see what is wrong.
        for bad in decoded.bad_rows[:1]:
            offset = fetched.table.column("offset")[bad.index].as_py()
            yield Finding(
                level="problem" if source.on_error == "fail" else "note",
                code="undecodable",
                message=f"{fetched.topic}-{fetched.partition} offset {offset:,} does not decode: {bad.reason}",
                fix='read the column as a string, or set such records aside: on_error=DeadLetter("..")',
                where=bad.excerpt,
            )
    shown_topics = ", ".join(source.topics)
    if ranges:
        yield Finding(level="ok", code="records", message=f"{shown_topics}: {good} of the newest records decode")
    else:
        yield Finding(level="note", code="records", message=f"{shown_topics}: no records yet, so the schema is untried")


def _state_directory(app: ApplicationDeclaration) -> Iterator[Finding]:
    directory = app.state_dir
    existing = next((path for path in (directory, *directory.parents) if path.exists()), directory)
    if _writable(existing):
        yield Finding(level="ok", code="state-dir", message=f"state goes to {directory}")
    else:
        yield Finding(
            level="problem",
            code="state-dir",
            message=f"{existing} cannot be written, so there is no place for state",
            fix='StreamsApp(.., state_dir="/some/local/disk"), or HEADRACE_STATE_DIR',
        )


def _tables(compiled: CompiledTopology) -> Iterator[Finding]:
    for branch in (branch for part in compiled.subtopologies for branch in part.branches):
        if not isinstance(branch.sink, TableSink):
            continue
        if isinstance(branch.sink.sink, DatabaseSink):
            yield from _existing_table(branch.sink.sink, branch.sink.where)
        if not isinstance(branch.sink.sink, ParquetSink):
            continue
        directory = Path(branch.sink.sink.path)
        existing = next((path for path in (directory, *directory.parents) if path.exists()), directory)
        if existing.is_dir() and _writable(existing):
            yield Finding(level="ok", code="table", message=f"{directory} can be written")
        else:
            yield Finding(
                level="problem",
                code="table",
                message=f"{existing} cannot be written, so no row gets into {directory}",
                fix="a directory on a file system that every instance sees and may write",
                where=shown(branch.sink.where),
            )
        if isinstance(branch.sink.sink, (DeltaSink, IcebergSink)):
            yield from _existing_table(branch.sink.sink, branch.sink.where)


def _existing_table(sink: DatabaseSink | DeltaSink | IcebergSink, where: str) -> Iterator[Finding]:
    try:
        sink.check()
    except SinkError as error:
        yield Finding(level="problem", code="table", message=error.message, fix=error.fix, where=shown(where))
    except OSError as error:
        message = f"the table {sink.name} cannot be read: {error}"
        fix = getattr(error, "fix", "look at its log")
        yield Finding(level="problem", code="table", message=message, fix=fix, where=shown(where))
    else:
        if isinstance(sink, DatabaseSink):
            yield Finding(level="ok", code="table", message=f"{sink.name} can take the rows")


def _writable(directory: Path) -> bool:
    try:
        with tempfile.TemporaryFile(dir=directory):  # asking for the permission says yes to root everywhere
            return True
    except OSError:
        return False


def _session(app: ApplicationDeclaration) -> Iterator[Finding]:
    missing = missing_settings(app.spark)
    for name, wanted, refused, why in missing:
        yield Finding(
            level="problem" if refused else "note",
            code="session-setting",
            message=f"{name} is not {wanted}: {why}",
            fix=f'set it when the session is built, or let headrace.spark.session("{app.name}") build one',
        )
    if not missing:
        yield Finding(level="ok", code="session-setting", message="the Spark session has all that the runtime needs")


def _executors(app: ApplicationDeclaration, compiled: CompiledTopology) -> Iterator[Finding]:
    """Yield what keeps the application from running on the executors of the session's cluster."""
    from headrace.spark.runtime.slots.cluster_runner import cluster_chains

    if not is_cluster(str(app.spark.sparkContext.master)):
        return
    for look in (
        lambda: refuse_on_cluster(
            compiled,
            guarantee=app.processing_guarantee,
            execution=str(app.config["headrace.execution"]),
            transaction_timeout_ms=int(app.config["transaction.timeout.ms"]),
        ),
        lambda: cores_for_each(slots_on_cluster(app._settings()), len(compiled.subtopologies)),
        lambda: [cluster_chains(app.spark, part, 1, {}) for part in compiled.subtopologies],
    ):
        try:
            look()
        except HeadraceError as error:
            yield _problem(error)
            return
    yield Finding(level="ok", code="cluster", message=f"it can run on executors of {app.spark.sparkContext.master}")


def _problem(error: HeadraceError) -> Finding:
    return Finding(
        level="problem", code=error.code, message=error.message, fix=error.fix, where=str(error.facts.get("where", ""))
    )


def _ordered(findings: list[Finding]) -> list[Finding]:
    rank = {"problem": 0, "note": 1, "ok": 2}
    return sorted(findings, key=lambda finding: rank[finding.level])
