"""Descriptions of an application's topology before it runs: text for people, JSON for programs, Mermaid for pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from headrace.errors import ConfigError
from headrace.spark.application_settings import ApplicationSettings
from headrace.spark.topology.nodes import (
    Aggregate,
    Branch,
    CompiledSubtopology,
    CompiledTopology,
    DeadLetter,
    Deduplication,
    ForeignKeyJoin,
    Join,
    KeyedOperator,
    OverRows,
    RepartitionSink,
    RepartitionSource,
    SessionWindow,
    Sink,
    Source,
    Subscriptions,
    TableAggregate,
    TableJoin,
    TableSink,
    TimeWindow,
    TopicSink,
    TopicSource,
    TopN,
    Transform,
    Watermark,
    WindowedAggregate,
    WindowedTopN,
    WindowKind,
)

ReasonsForJobs = Mapping[str, str | None]


def describe(compiled: CompiledTopology, format: str, reasons_for_jobs: ReasonsForJobs) -> str:
    """Return the topology in one of the formats `text`, `json` and `mermaid`.

    Args:
        compiled: The topology.
        format: The format.
        reasons_for_jobs: As the function of that name returns them.

    Raises:
        ConfigError: for any other format.
    """
    if format == "json":
        return json.dumps(as_document(compiled, reasons_for_jobs), indent=2)
    if format == "mermaid":
        return "\n".join(_mermaid(compiled))
    if format == "text":
        return "\n".join(_text(compiled, reasons_for_jobs))
    raise ConfigError("bad-value", f"format={format!r} is none of text, json, mermaid", 'format="text"')


def reasons_for_jobs(settings: ApplicationSettings, compiled: CompiledTopology) -> ReasonsForJobs:
    """Return, for each subtopology, why it runs a Spark job for each micro-batch; None if it has resident slots.

    The answer holds for as many tasks as the session has cores. It does not include what only a start shows: whether
    Spark passes markers.
    """
    from headrace.spark.cluster_masters import is_cluster
    from headrace.spark.runtime.slots.resident_slots import ResidentThreads
    from headrace.spark.spark_session import cores_of

    if is_cluster(str(settings.spark.sparkContext.master)):  # there are no other ways to run there
        return dict.fromkeys(part.subtopology_id for part in compiled.subtopologies)
    threads = ResidentThreads(settings.spark, str(settings.config["headrace.execution"]))
    # 0 means as many slots as the session has cores.
    slots = int(settings.config["headrace.max.slots"]) or cores_of(settings.spark)
    return {part.subtopology_id: threads.reason_for_jobs(part, slots) for part in compiled.subtopologies}


def as_document(compiled: CompiledTopology, reasons_for_jobs: ReasonsForJobs) -> dict[str, Any]:
    """Return the topology as dictionaries and lists, in an order that depends only on the program."""
    # Sorted by the program only, so that descriptions of two versions can be compared as text.
    return {
        "application": compiled.app_name,
        "subtopologies": [
            {
                "id": part.subtopology_id,
                "resident_slots": reasons_for_jobs[part.subtopology_id] is None,
                "reason_for_jobs": reasons_for_jobs[part.subtopology_id],
                "sources": [_source(source) for source in part.sources],
                "branches": [_branch(branch) for branch in part.branches],
            }
            for part in compiled.subtopologies
        ],
    }


def _source(source: Source) -> dict[str, Any]:
    if isinstance(source, RepartitionSource):
        return {"kind": "repartition", "topic": source.topic, "columns": [name for name, _ in source.columns]}
    on_error = f"dead letter: {source.on_error.topic}" if isinstance(source.on_error, DeadLetter) else source.on_error
    needed = None if source.columns_needed is None else list(source.columns_needed)
    return {
        "kind": "topic",
        "name": source.name,
        "topics": list(source.topics),
        "format": source.value_format,
        "key": source.key_column,
        "columns": needed,
        "on_error": on_error,
        **_key_format(source),
    } | {
        name: f"dead letter: {policy.topic}" if isinstance(policy, DeadLetter) else policy
        for name, policy, default in (
            ("on_late", source.on_late, "drop"),
            ("on_ahead", source.on_ahead, "keep"),
        )
        if policy != default
    }


def _branch(branch: Branch) -> dict[str, Any]:
    document: dict[str, Any] = {} if branch.join is None else {"join": _join(branch.join)}
    if branch.transform is not None:
        document["transform"] = _transform(branch.transform)
    if branch.over is not None:
        document["over"] = _over(branch.over)
    if branch.subscriptions is not None:
        document["subscriptions"] = _subscriptions(branch.subscriptions)
    if branch.closed is not None:
        document["closed_windows"] = _aggregate(branch.closed)
    document["calls"] = [call.method for call in branch.before]
    if branch.deduplication is not None:
        document["deduplication"] = _deduplication(branch.deduplication)
        document["calls_between"] = [call.method for call in branch.between]
    if branch.projection is not None:
        joins = isinstance(branch.sink, RepartitionSink) and branch.sink.join is not None
        document["join_by" if joins else "group_by"] = [sql for _, sql in branch.projection.key_sql]
    if branch.watermark is not None:
        document["watermark"] = _watermark(branch.watermark)
    if branch.operator is not None:
        key, document_of, _ = _OPERATORS[type(branch.operator)]
        document[key] = document_of(branch.operator)
        document["calls_behind"] = [call.method for call in branch.after]
    if branch.onward is not None:
        document["changes_by"] = [sql for _, sql in branch.onward.key_sql]
    document["sink"] = _sink(branch.sink)
    return document


def _join(join: Join) -> dict[str, Any]:
    return {
        "name": join.name,
        "keys": _keys_of(join),
        "left": [name for name, _ in join.left.columns],
        "right": [name for name, _ in join.right.columns],
        **({"in_event_time": join.expiry_text} if join.in_event_time else {}),
        "changelog": join.changelog_topic,
    }


def _transform(transform: Transform) -> dict[str, Any]:
    return {
        "name": transform.name,
        "processor": transform.processor_name,
        "time_mode": transform.time_mode,
        "keys": list(transform.group_expressions),
        "variables": {variable.name: variable.kind for variable in transform.variables},
        "columns": [name for name, _ in transform.columns],
        "changelog": transform.changelog_topic,
    }


def _over(over: OverRows) -> dict[str, Any]:
    return {
        "name": over.name,
        "keys": list(over.group_expressions),
        "order": ", ".join(_order_of(over)),
        "functions": [str(one) for one in over.functions],
        "columns": [name for name, _ in over.columns],
        "changelog": over.changelog_topic,
    }


def _keys_of(join: Join | TableJoin) -> list[str]:
    pairs = zip(join.left.key_expressions, join.right.key_expressions, strict=True)
    return [left if left == right else f"{left} = {right}" for left, right in pairs]


def _deduplication(deduplication: Deduplication) -> dict[str, Any]:
    return {
        "name": deduplication.name,
        "keys": [name for name, _ in deduplication.key_columns],
        "event_time": deduplication.event_time_expression,
        "delay_ms": deduplication.delay_us / 1000,
        "max_ahead_ms": deduplication.max_ahead_us / 1000,
        "changelog": deduplication.changelog_topic,
    }


def _watermark(watermark: Watermark) -> dict[str, Any]:
    return {
        "name": watermark.name,
        "event_time": watermark.event_time_expression,
        "delay_ms": watermark.delay_us / 1000,
        "max_ahead_ms": watermark.max_ahead_us / 1000,
        "changelog": watermark.changelog_topic,
    }


def _aggregate(aggregate: Aggregate) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": aggregate.name,
        "keys": [name for name, _ in aggregate.group_columns],
        "buffers": [
            f"{buffer.name}={buffer.function}({', '.join(buffer.inputs) or '*'})" for buffer in aggregate.buffers
        ],
        "columns": [name for name, _ in aggregate.results],
        "changelog": aggregate.changelog_topic,
    }
    if aggregate.window is not None:
        document["window"] = _window(aggregate.window)
    if isinstance(aggregate, WindowedAggregate):
        document["window"] |= _closing(aggregate)
    return document


def _window(window: WindowKind) -> dict[str, Any]:
    if isinstance(window, SessionWindow):
        return {"gap_ms": window.gap_us / 1000}
    return {"size_ms": window.size_us / 1000, "slide_ms": window.slide_us / 1000}


def _closing(node: WindowedAggregate | WindowedTopN) -> dict[str, Any]:
    return {"closes_by": list(node.watermark_sources), "idle_timeout_ms": node.idle_timeout_ms}


def _window_kind(window: WindowKind) -> str:
    if isinstance(window, SessionWindow):
        return f"sessions with gaps of {timedelta(microseconds=window.gap_us)}"
    kind = f"windows of {timedelta(microseconds=window.size_us)}"
    return kind if window.slide_us == window.size_us else f"{kind} each {timedelta(microseconds=window.slide_us)}"


def _closes_by(node: WindowedAggregate | WindowedTopN) -> str:
    return f"which close by the watermark of {', '.join(node.watermark_sources)}"


def _aggregate_line(aggregate: Aggregate) -> str:
    columns = ", ".join(name for name, _ in aggregate.results)
    if aggregate.window is None:
        return columns
    kind = _window_kind(aggregate.window)
    closes = _closes_by(aggregate) if isinstance(aggregate, WindowedAggregate) else "kept for ever"
    return f"{columns}; {kind}, {closes}"


def _top_n(top: TopN) -> dict[str, Any]:
    return {
        "name": top.name,
        "keys": [name for name, _ in top.group_columns],
        "function": top.function,
        "limit": top.limit,
        "order": _order_of(top),
        "columns": [name for name, _ in top.results],
        "changelog": top.changelog_topic,
    }


def _order_of(top: TopN | OverRows) -> list[str]:
    expressions = dict(zip((name for name, _ in top.inputs), top.input_expressions, strict=True))
    return [str(replace(one, column=expressions[one.column])) for one in top.order]


def _top_n_line(top: TopN) -> str:
    keys = ", ".join(name for name, _ in top.group_columns)
    return f"{top.function}() <= {top.limit} by {keys} in the order {', '.join(_order_of(top))}"


def _windowed_top_n(top: WindowedTopN) -> dict[str, Any]:
    return _top_n(top) | {"window": _window(top.window) | _closing(top)}


def _windowed_top_n_line(top: WindowedTopN) -> str:
    return f"{_top_n_line(top)}; {_window_kind(top.window)}, {_closes_by(top)}"


def _table_join(join: TableJoin) -> dict[str, Any]:
    return {
        "name": join.name,
        "kind": join.kind,
        "keys": _keys_of(join),
        "columns": [name for name, _ in join.results],
        "changelog": join.changelog_topic,
    }


def _table_join_line(join: TableJoin) -> str:
    columns = ", ".join(name for name, _ in join.results)
    return f"newest rows of two tables by {', '.join(_keys_of(join))}, {join.kind} ({columns})"


def _foreign_key_join(join: ForeignKeyJoin) -> dict[str, Any]:
    return _table_join(join) | {
        "keys": [name for name, _ in join.group_columns],
        "foreign_key": [f"{left} = {right}" for left, right in _foreign_key(join)],
    }


def _foreign_key(join: ForeignKeyJoin) -> list[tuple[str, str]]:
    return list(zip(join.left.key_expressions, join.right.key_expressions, strict=True))


def _foreign_key_join_line(join: ForeignKeyJoin) -> str:
    columns = ", ".join(name for name, _ in join.results)
    keys = ", ".join(name for name, _ in join.group_columns)
    pairs = ", ".join(f"{left} = {right}" for left, right in _foreign_key(join))
    return f"newest rows of the left table by {keys}, with those of the right one by {pairs}, {join.kind} ({columns})"


def _subscriptions(subscriptions: Subscriptions) -> dict[str, Any]:
    return {
        "name": subscriptions.name,
        "keys": list(subscriptions.join.right.key_expressions),
        "changelog": subscriptions.changelog_topic,
    }


# For each kind of operator with keys: its name in JSON, its document, and its line of text.
_OPERATORS: dict[type, tuple[str, Callable[[Any], dict[str, Any]], Callable[[Any], str]]] = {
    Aggregate: ("aggregate", _aggregate, _aggregate_line),
    WindowedAggregate: ("aggregate", _aggregate, _aggregate_line),
    TableAggregate: ("aggregate", _aggregate, _aggregate_line),
    TableJoin: ("join_of_tables", _table_join, _table_join_line),
    ForeignKeyJoin: ("foreign_key_join", _foreign_key_join, _foreign_key_join_line),
    TopN: ("top_n", _top_n, _top_n_line),
    WindowedTopN: ("top_n", _windowed_top_n, _windowed_top_n_line),
}


def _sink(sink: Sink) -> dict[str, Any]:
    if isinstance(sink, RepartitionSink):
        document = {"kind": "repartition", "topic": sink.topic}
        return document | ({"subscriptions": sink.subscriptions_topic} if sink.subscriptions_topic else {})
    if isinstance(sink, TopicSink):
        return {
            "kind": "topic",
            "topic": sink.topic,
            "format": sink.value_format,
            "key": None if sink.key_columns is None else list(sink.key_columns),
            "columns": list(sink.value_columns),
            "output_mode": sink.output_mode,
            "partitions": sink.partitions,
            **_key_format(sink),
        }
    if isinstance(sink, TableSink):
        return {"kind": "table", "name": sink.name, "columns": list(sink.columns)}
    return {"kind": "foreachBatch", "function": sink.name, "columns": list(sink.columns)}


def _key_format(end: TopicSource | TopicSink) -> dict[str, str]:
    return {} if end.typed_key is None else {"key_format": end.typed_key.format}


def _text(compiled: CompiledTopology, reasons_for_jobs: ReasonsForJobs) -> list[str]:
    lines = [f"application {compiled.app_name}"]
    for part in compiled.subtopologies:
        lines += ["", f"subtopology {part.subtopology_id}"]
        lines += [f"  reads    {_source_line(source)}" for source in part.sources]
        for branch in part.branches:
            lines += _head_lines(branch)
            if branch.before:
                lines.append(f"  then     {' · '.join(call.method for call in branch.before)}")
            if branch.deduplication is not None:
                lines += _deduplication_lines(branch.deduplication)
            if branch.between:
                lines.append(f"  then     {' · '.join(call.method for call in branch.between)}")
            if branch.projection is not None:
                joins = isinstance(branch.sink, RepartitionSink) and branch.sink.join is not None
                by = ", ".join(sql for _, sql in branch.projection.key_sql)
                lines.append(f"  {'joins   ' if joins else 'groups  '} by {by}")
            if branch.watermark is not None:
                lines += _watermark_lines(branch.watermark)
            if branch.operator is not None:
                lines += _operator_lines(branch.operator)
            if branch.after:
                lines.append(f"  then     {' · '.join(call.method for call in branch.after)}")
            lines.append(f"  writes   {_sink_line(branch)}")
        reason = reasons_for_jobs[part.subtopology_id]
        lines.append(
            "  runs     in resident slots" if reason is None else f"  runs     a job for each micro-batch: {reason}"
        )
    return lines


def _head_lines(branch: Branch) -> list[str]:
    if branch.join is not None:
        return _join_lines(branch.join)
    if branch.transform is not None:
        return _transform_lines(branch.transform)
    if branch.over is not None:
        return _over_lines(branch.over)
    if branch.subscriptions is not None:
        return _subscription_lines(branch.subscriptions)
    return [] if branch.closed is None else _operator_lines(branch.closed)


def _operator_lines(operator: KeyedOperator) -> list[str]:
    return [
        f"  keeps    {operator.name}: {_OPERATORS[type(operator)][2](operator)}",
        f"           changelog {operator.changelog_topic}",
    ]


def _join_lines(join: Join) -> list[str]:
    left, right = (", ".join(name for name, _ in side.columns) for side in join.sides)
    rows = "rows of both sides until they can match no more," if join.in_event_time else "all rows of both sides"
    if join.is_versioned:
        rows = "left rows until the right side has passed them, versions of right rows until they are superseded,"
    lines = [
        f"  keeps    {join.name}: {rows} by {', '.join(_keys_of(join))} (left: {left}; right: {right})",
        f"           changelog {join.changelog_topic}",
    ]
    if join.in_event_time:
        lines.insert(1, f"           {join.expiry_text}")
    return lines


def _transform_lines(transform: Transform) -> list[str]:
    variables = ", ".join(f"{variable.kind} {variable.name}" for variable in transform.variables)
    by = ", ".join(transform.group_expressions)
    return [
        f"  keeps    {transform.name}: {transform.processor_name} by {by} ({variables or 'no variables'})",
        f"           changelog {transform.changelog_topic}",
    ]


def _over_lines(over: OverRows) -> list[str]:
    by, order = ", ".join(over.group_expressions), ", ".join(_order_of(over))
    return [
        f"  keeps    {over.name}: rows by {by} in the order {order}, until the watermark has passed them, and what is",
        "           read of them later:",
        *(f"             {function}" for function in over.functions),
        f"           changelog {over.changelog_topic}",
    ]


def _subscription_lines(subscriptions: Subscriptions) -> list[str]:
    by = ", ".join(subscriptions.join.right.key_expressions)
    return [
        f"  keeps    {subscriptions.name}: newest row of the right table by {by}, and the keys of its left rows",
        f"           changelog {subscriptions.changelog_topic}",
    ]


def _deduplication_lines(deduplication: Deduplication) -> list[str]:
    delay = timedelta(microseconds=deduplication.delay_us)
    keys = ", ".join(name for name, _ in deduplication.key_columns)
    if not deduplication.event_time_expression:
        return [
            f"  keeps    {deduplication.name}: first row by {keys}, for ever",
            f"           changelog {deduplication.changelog_topic}",
        ]
    return [
        f"  keeps    {deduplication.name}: first row by {keys} within {delay} of {deduplication.event_time_expression}",
        f"           changelog {deduplication.changelog_topic}",
    ]


def _watermark_lines(watermark: Watermark) -> list[str]:
    time = f"newest {watermark.event_time_expression} less {timedelta(microseconds=watermark.delay_us)}"
    dropped = "rows of closed windows" if isinstance(watermark.window, TimeWindow) else "earlier rows"
    return [
        f"  keeps    {watermark.name}: {time}; drops {dropped}",
        f"           changelog {watermark.changelog_topic}",
    ]


def _source_line(source: Source) -> str:
    if isinstance(source, RepartitionSource):
        return f"{source.topic} (internal)"
    return f"{', '.join(source.topics)} ({source.value_format}: {', '.join(source.columns_needed or ())})"


def _sink_line(branch: Branch) -> str:
    sink = branch.sink
    if isinstance(sink, RepartitionSink):
        return ", ".join(f"{topic} (internal)" for topic in sink.topics)
    if isinstance(sink, TopicSink):
        created = f", created with {sink.partitions} partitions when missing" if sink.partitions else ""
        return f"{sink.topic} ({sink.value_format}, key {_key_shown(branch, sink)}{created})"
    if isinstance(sink, TableSink):
        return f"{sink.name} ({type(sink.sink).__name__}: {', '.join(sink.columns)})"
    return f"foreachBatch({sink.name})"


def _key_shown(branch: Branch, sink: TopicSink) -> str:
    if sink.typed_key is not None:
        return f"{', '.join(sink.typed_key.columns)} as {sink.typed_key.format}"
    if sink.key_columns is not None:
        return ", ".join(sink.key_columns)
    if branch.closed is not None:
        return ", ".join(name for name, _ in branch.closed.group_columns)
    if branch.operator is None:
        head = branch.transform or branch.over
        groups = () if head is None else head.group_columns
        return ", ".join(name for name, _ in groups) or "of the input"
    position = branch.operator.key_name if isinstance(branch.operator, TopN) else None
    return ", ".join([name for name, _ in branch.operator.group_columns] + ([position] if position else []))


def _mermaid(compiled: CompiledTopology) -> list[str]:
    lines = ["flowchart LR"]
    topics: dict[str, str] = {}
    edges: list[str] = []
    for number, part in enumerate(compiled.subtopologies):
        node = f"s{number}"
        lines.append(f'  {node}["{part.subtopology_id}"]')
        edges += [f"  {topics.setdefault(topic, f't{len(topics)}')} --> {node}" for topic in _topics_read(part)]
        for branch in part.branches:
            for target in _targets(branch.sink):
                edges.append(f"  {node} --> {topics.setdefault(target, f't{len(topics)}')}")
            for state in (branch.head, branch.deduplication, branch.watermark, branch.operator):
                if state is not None:
                    store = f"{node}_{state.name.replace('-', '_').replace('.', '_')}"
                    lines.append(f'  {store}[("{state.name}")]')
                    edges.append(f"  {node} --- {store}")
    lines += [f'  {node}(["{topic}"])' for topic, node in topics.items()]
    return lines + list(dict.fromkeys(edges))


def _targets(sink: Sink) -> tuple[str, ...]:
    if isinstance(sink, RepartitionSink):
        return sink.topics
    if isinstance(sink, TopicSink):
        return (sink.topic,)
    return (sink.name if isinstance(sink, TableSink) else f"foreachBatch {sink.name}",)


def _topics_read(part: CompiledSubtopology) -> list[str]:
    read: list[str] = []
    for source in part.sources:
        read += source.topics if isinstance(source, TopicSource) else (source.topic,)
    return read
