"""Registry of the operators with keys: for each kind of node, the operator that runs it and the step that traces it.

An operator takes rows `g0.., i0..` and returns rows with the node's `output_columns` and the hidden columns. A new kind
needs an entry here, its store in `row_schema.store_of`, and a comparison in `verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace.spark.runtime.batches.stages import Step
from headrace.spark.runtime.operators.aggregate_operator import AggregateOperator
from headrace.spark.runtime.operators.foreign_key_join_operator import ForeignKeyJoinOperator
from headrace.spark.runtime.operators.session_operator import SessionOperator
from headrace.spark.runtime.operators.stateful_operator import StatefulOperator
from headrace.spark.runtime.operators.table_aggregate_operator import TableAggregateOperator
from headrace.spark.runtime.operators.table_join_operator import TableJoinOperator
from headrace.spark.runtime.operators.top_n_operator import TopNOperator
from headrace.spark.runtime.operators.window_operator import WindowOperator
from headrace.spark.runtime.operators.window_top_n_operator import WindowTopNOperator
from headrace.spark.runtime.record_tracing import TracedAggregateStep
from headrace.spark.topology.nodes import (
    Aggregate,
    ForeignKeyJoin,
    KeyedOperator,
    SessionWindow,
    TableAggregate,
    TableJoin,
    TopN,
    WindowedAggregate,
    WindowedTopN,
)

__all__ = ["can_trace", "stateful_operator", "traced_step"]


@dataclass(frozen=True, slots=True)
class _Kind:
    operator: Callable[[Any, bool], Any]  # of a node, and whether its rows carry the key of their records
    traced: Callable[[Any], Step] | None = None  # of an operator; None: bad records are searched by prefixes


def _aggregate(node: Aggregate, with_key: bool) -> AggregateOperator:
    return AggregateOperator(node, tuple(name for name, _ in node.group_columns) if with_key else None)


def _windows(node: WindowedAggregate, with_key: bool) -> WindowOperator | SessionOperator:
    names = tuple(name for name, _ in node.group_columns) if with_key else None
    return SessionOperator(node, names) if isinstance(node.window, SessionWindow) else WindowOperator(node, names)


def _table(node: TableAggregate, with_key: bool) -> TableAggregateOperator:
    return TableAggregateOperator(node, tuple(name for name, _ in node.group_columns) if with_key else None)


_KINDS: dict[type, _Kind] = {
    Aggregate: _Kind(_aggregate, TracedAggregateStep),
    WindowedAggregate: _Kind(_windows),
    TableAggregate: _Kind(_table),
    TableJoin: _Kind(lambda node, _: TableJoinOperator(node)),
    ForeignKeyJoin: _Kind(lambda node, _: ForeignKeyJoinOperator(node)),
    TopN: _Kind(TopNOperator),
    WindowedTopN: _Kind(WindowTopNOperator),
}


def stateful_operator(node: KeyedOperator, with_key: bool) -> StatefulOperator:
    """Return the operator that runs `node`.

    Args:
        node: The operator's declaration.
        with_key: Whether its rows carry the key of their records, made of the grouping values.
    """
    operator: StatefulOperator = _KINDS[type(node)].operator(node, with_key)
    return operator


def can_trace(node: KeyedOperator) -> bool:
    """Whether a failure behind the operator can be attributed to single records by a run that writes nothing."""
    # A failure on a change may be due to a record of an earlier micro-batch: the old row was made of it.
    return _KINDS[type(node)].traced is not None and not node.emits_changes


def traced_step(node: KeyedOperator, with_key: bool) -> Step:
    """Return the step that finds bad records in place of the operator. Only where `can_trace`."""
    kind = _KINDS[type(node)]
    assert kind.traced is not None
    return kind.traced(kind.operator(node, with_key))
