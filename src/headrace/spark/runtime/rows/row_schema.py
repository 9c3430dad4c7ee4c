"""Identity of stored rows: what their columns are, in which types and order, and in which format they are written.

Three kinds of places hold rows: stores, changelog topics and repartition topics. A row begins with its format version
and the first four bytes of the SHA-256 of its schema's text (`RowSchema.fingerprint`), so a reader recognises rows of
another program wherever they come from, whichever broker stored them and whatever compaction left. The texts are
published once per changelog, in the first record of its partition 0 (`StoredSchema`), so that a program can be refused
before it writes anything, by the names of what differs. `docs/internals/spark.md` describes the whole.

Pure: no I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from headrace.errors import StateError
from headrace.spark.arrow_types import arrow_type
from headrace.spark.runtime.operators.table_functions import functions_of
from headrace.spark.runtime.rows.rows import ROW_FORMAT, SCHEMA_KEY
from headrace.spark.topology.nodes import (
    JOIN_SIDES,
    VALUE_FUNCTIONS,
    Aggregate,
    Branch,
    CompiledTopology,
    Deduplication,
    ForeignKeyJoin,
    Join,
    KeyedOperator,
    OverRows,
    RepartitionSource,
    SessionWindow,
    Subscriptions,
    TableAggregate,
    TableJoin,
    TopN,
    Transform,
    Watermark,
    WindowedAggregate,
    WindowedTopN,
)

__all__ = [
    "DISTINCT_OF",
    "WINDOW_START",
    "RowColumn",
    "RowSchema",
    "StoreSpec",
    "StoredSchema",
    "input_schema",
    "judge_changelog",
    "schemas_by_changelog",
    "state_schema",
    "store_of",
    "store_of_deduplication",
    "store_of_join",
    "store_of_over",
    "store_of_subscriptions",
    "store_of_transform",
    "store_of_watermark",
    "stored_schema",
    "stores_of_branch",
    "top_n_schema",
]

FINGERPRINT_BYTES = 4
DISTINCT_OF = " of "
"""Between the type of a stored column and the types of the values that it was made of."""


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One column of a row. `role`: "key", "input", "row", or the function; `expression` is canonical text."""

    role: str
    expression: str
    type: str

    def __str__(self) -> str:
        if self.role in ("key", "input", "row"):
            return f"{self.expression}: {self.type}"
        return f"{self.role}({self.expression}): {self.type}"


@dataclass(frozen=True, slots=True)
class RowSchema:
    """The columns of a row, in order, and the keys it belongs to."""

    columns: tuple[RowColumn, ...]
    format: int = ROW_FORMAT

    @property
    def text(self) -> str:
        """Canonical: equal for equal schemas, and for no others."""
        return json.dumps(self.as_document(), sort_keys=True, separators=(",", ":"))

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def fingerprint(self) -> bytes:
        return bytes.fromhex(self.hash)[:FINGERPRINT_BYTES]

    def as_document(self) -> dict[str, Any]:
        return {"format": self.format, "columns": [[c.role, c.expression, c.type] for c in self.columns]}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> RowSchema:
        return cls(tuple(RowColumn(*column) for column in document["columns"]), int(document["format"]))

    @property
    def keys(self) -> tuple[RowColumn, ...]:
        return tuple(column for column in self.columns if column.role == "key")

    @property
    def values(self) -> tuple[RowColumn, ...]:
        return tuple(column for column in self.columns if column.role != "key")

    def __str__(self) -> str:
        keys, values = (", ".join(map(str, columns)) or "nothing" for columns in (self.keys, self.values))
        return f"by {keys}: {values}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """One of the stores of an operator, the same in each task: its changelog, and the identity of its rows."""

    name: str  # of its directory
    changelog_topic: str
    rows: RowSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSchema:
    """Schemas stored for one aggregate: rows of its store and changelog, and rows of its repartition topic."""

    name: str
    state: RowSchema
    inputs: RowSchema | None  # None: no repartition topic

    @property
    def key(self) -> bytes:
        """Record key of the schema.

        Each schema has its own, so compaction never replaces the first one by a later one.
        """
        return SCHEMA_KEY + hashlib.sha256(self.value).digest()[:FINGERPRINT_BYTES]

    @property
    def value(self) -> bytes:
        inputs = None if self.inputs is None else self.inputs.as_document()
        document = {"name": self.name, "state": self.state.as_document(), "inputs": inputs}
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def from_value(cls, value: bytes) -> StoredSchema:
        """Raises StateError("state-corrupt")."""
        try:
            document = json.loads(value)
            inputs = document["inputs"]
            return cls(
                name=document["name"],
                state=RowSchema.from_document(document["state"]),
                inputs=None if inputs is None else RowSchema.from_document(inputs),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise StateError("state-corrupt", f"a schema record of a changelog cannot be read: {error!r}") from error

    def difference(self, program: StoredSchema) -> str | None:
        """Describe how the rows of `program` differ from these; None if they are equal."""
        if (found := _difference(self.state, program.state)) is not None:
            return found
        if self.inputs is not None and program.inputs is not None:
            return _difference(self.inputs, program.inputs)
        if self.inputs != program.inputs:
            return "its rows are " + ("repartitioned" if program.inputs is not None else "not repartitioned") + " now"
        return None


def _difference(old: RowSchema, new: RowSchema) -> str | None:
    if old == new:
        return None
    if old.format != new.format:
        return f"row format {old.format}, this release writes format {new.format}"
    if old.keys != new.keys:
        return f"grouped by {_listed(old.keys)} before, by {_listed(new.keys)} now"
    # Counters and not sets: one program may keep the same partial result twice.
    removed = list((Counter(old.values) - Counter(new.values)).elements())
    added = list((Counter(new.values) - Counter(old.values)).elements())
    parts = [f"new: {_listed(added)}"] if added else []
    parts += [f"no longer there: {_listed(removed)}"] if removed else []
    return "; ".join(parts) or "the same columns in another order"


def _listed(columns: Any) -> str:
    return ", ".join(map(str, columns)) or "nothing"


def state_schema(aggregate: Aggregate) -> RowSchema:
    """The rows of the aggregate's store and changelog."""
    groups = aggregate.group_columns
    expressions = aggregate.group_expressions or tuple(name for name, _ in groups)
    # 1. Grouping columns, known by their canonical texts and not by the names that the program gives them.
    columns = [
        RowColumn("key", expression, str(arrow_type(kind)))
        for expression, (_, kind) in zip(expressions, groups, strict=True)
    ]
    # 2. Partial results in the order of the buffers. One of them may take several stored columns, such as sum and count
    #    of an average: the function itself lists them, so that none is left out of the fingerprint.
    for buffer in aggregate.buffers:
        types = " + ".join(str(column.type) for column in functions_of(aggregate).columns_of(buffer))
        # The bytes of entries, sketches and lists depend on the types of the values.
        if buffer.function in _HOLDS_VALUES:
            kinds = [buffer.input_type or "", *(kind for _, kind in buffer.more_inputs)]
            types += f"{DISTINCT_OF}{', '.join(str(arrow_type(kind)) for kind in kinds)}"
        columns.append(RowColumn(buffer.function, buffer.argument or buffer.input or "*", types))
    # 3. What decides which keys have a row: a stored value was published, or not, by this very rule. The type is none
    #    of a stored value, so `headrace upgrade --state keep` cannot take rows over into another rule.
    if aggregate.changes:
        columns.append(RowColumn("changes", aggregate.changes, "rows of changes"))
    return RowSchema(tuple(columns))


_HOLDS_VALUES = VALUE_FUNCTIONS | {"count_distinct", "approx_count_distinct", "percentile_approx"}
WINDOW_START = RowColumn("key", "start of a window that closes", "int64")


SESSIONS = RowColumn("key", "last row and id of a session that closes", "int64")


def windowed_schema(aggregate: WindowedAggregate) -> RowSchema:
    """The rows of an aggregate whose windows close: under keys in the order of time, and with their groups."""
    first = (WINDOW_START, SESSIONS) if isinstance(aggregate.window, SessionWindow) else (WINDOW_START,)
    return RowSchema((*first, *state_schema(aggregate).columns))


def _ordered_rows(node: TopN | OverRows) -> tuple[list[RowColumn], str]:
    """Return the columns of rows `g0.., i0..`, and the order of a key's rows in canonical texts."""
    columns = [
        RowColumn("key", expression, str(arrow_type(kind)))
        for expression, (_, kind) in zip(node.group_expressions, node.group_columns, strict=True)
    ]
    columns += [
        RowColumn("row", expression, str(arrow_type(kind)))
        for expression, (_, kind) in zip(node.input_expressions, node.inputs, strict=True)
    ]
    names = dict(zip((name for name, _ in node.inputs), node.input_expressions, strict=True))
    return columns, ", ".join(str(replace(one, column=names[one.column])) for one in node.order)


def top_n_schema(top: TopN) -> RowSchema:
    """The rows of a top-N's store and changelog. Order and limit decided which rows are there, so they belong to it."""
    columns, order = _ordered_rows(top)
    # A type that no stored value has: rows of another rank cannot be taken over by `headrace upgrade --state keep`.
    return RowSchema((*columns, RowColumn(f"{top.function} up to {top.limit}", order, "rank")))


def windowed_top_n_schema(top: WindowedTopN) -> RowSchema:
    """The rows of a top-N whose windows close: under keys in the order of time, and with their groups."""
    return RowSchema((WINDOW_START, *top_n_schema(top).columns))


def table_join_schema(join: TableJoin) -> RowSchema:
    """The rows of a table-table join's store and changelog: the row that each side has of a key."""
    columns: list[RowColumn] = []
    if not isinstance(join, ForeignKeyJoin):
        pairs = zip(join.left.key_expressions, join.right.key_expressions, join.group_columns, strict=True)
        columns += [RowColumn("key", f"{left} = {right}", str(arrow_type(kind))) for left, right, (_, kind) in pairs]
    for role, side in zip(JOIN_SIDES, join.sides, strict=True):
        columns += [
            RowColumn(role, expression, str(arrow_type(kind)))
            for expression, (_, kind) in zip(side.expressions, side.columns, strict=True)
        ]
    # As in `state_schema`: types that no stored value has, because they decide what was published of a row.
    columns.append(RowColumn("join", join.kind, "join"))
    columns.append(RowColumn("changes", join.changes, "rows of changes"))
    return RowSchema(tuple(columns))


def foreign_key_join_schema(join: ForeignKeyJoin) -> RowSchema:
    """The rows of a foreign-key join's store and changelog: the row of each left key, and the right row with it."""
    keys = zip(join.left_key_expressions, join.group_columns, strict=True)
    columns = [RowColumn("key", expression, str(arrow_type(kind))) for expression, (_, kind) in keys]
    return RowSchema((*columns, *_foreign_key_columns(join), *table_join_schema(join).values))


def _foreign_key_columns(join: ForeignKeyJoin) -> list[RowColumn]:
    pairs = zip(join.left.key_expressions, join.right.key_expressions, join.foreign_types, strict=True)
    return [RowColumn("foreign key", f"{left} = {right}", str(arrow_type(kind))) for left, right, kind in pairs]


# Rows of the store and changelog of each kind of operator with keys.
_STATE_SCHEMAS: dict[type, Callable[[Any], RowSchema]] = {
    Aggregate: state_schema,
    WindowedAggregate: windowed_schema,
    TableAggregate: state_schema,
    TableJoin: table_join_schema,
    ForeignKeyJoin: foreign_key_join_schema,
    TopN: top_n_schema,
    WindowedTopN: windowed_top_n_schema,
}


def store_of(operator: KeyedOperator) -> StoreSpec:
    """The store of an operator with keys."""
    rows = _STATE_SCHEMAS[type(operator)](operator)
    return StoreSpec(name=operator.name, changelog_topic=operator.changelog_topic, rows=rows)


def store_of_deduplication(deduplication: Deduplication) -> StoreSpec:
    """The store of a deduplication. The delay is part of its keys: they hold spans of event time that are as long."""
    time = f"{deduplication.event_time_expression} in spans of {deduplication.delay_us} us"
    if not deduplication.event_time_expression:
        time = "one span of all time"
    columns = [RowColumn("key", time, "int64")]
    # The key's columns follow the span, as in the bytes of the store's keys.
    columns += [
        RowColumn("key", expression, str(arrow_type(kind)))
        for expression, (_, kind) in zip(deduplication.key_expressions, deduplication.key_columns, strict=True)
    ]
    columns.append(RowColumn("kept", deduplication.event_time_expression, "int64"))
    rows = RowSchema(tuple(columns))
    return StoreSpec(name=deduplication.name, changelog_topic=deduplication.changelog_topic, rows=rows)


def store_of_watermark(watermark: Watermark) -> StoreSpec:
    """The store of a watermark: one value, the newest event time. Another delay or window changes nothing in it."""
    # Neither delay nor window is in the text, so both can be changed without a new store.
    rows = RowSchema((RowColumn("newest", watermark.event_time_expression, "int64"),))
    return StoreSpec(name=watermark.name, changelog_topic=watermark.changelog_topic, rows=rows)


def store_of_join(join: Join) -> StoreSpec:
    """The store of a join: rows of both sides."""
    pairs = zip(join.left.key_expressions, join.right.key_expressions, join.key_types, strict=True)
    columns = [RowColumn("key", f"{left} = {right}", str(arrow_type(kind))) for left, right, kind in pairs]
    for role, side in (("left", join.left), ("right", join.right)):
        columns += [RowColumn(role, expression, str(arrow_type(kind))) for _, kind, expression in side.stored]
    if join.in_event_time:
        # A type that no stored value has: the state holds what the condition and the kind of the join let expire.
        columns.append(RowColumn("join", join.expiry_text, "join"))
    return StoreSpec(name=join.name, changelog_topic=join.changelog_topic, rows=RowSchema(tuple(columns)))


def store_of_transform(transform: Transform) -> StoreSpec:
    """The store of a stateful processor: its variables and timers. What its code does is not known."""
    columns = [
        RowColumn("key", expression, str(arrow_type(kind)))
        for expression, (_, kind) in zip(transform.group_expressions, transform.group_columns, strict=True)
    ]
    for variable in transform.variables:
        expires = "" if variable.ttl_ms is None else " that expires"
        parts = (("key of a map", variable.key_columns), (f"{variable.kind}{expires}", variable.columns))
        columns += [
            RowColumn(role, f"{variable.name}.{name}", str(arrow_type(kind)))
            for role, listed in parts
            for name, kind in listed
        ]
    # A type that no stored value has: entries cannot be taken over by `headrace upgrade --state keep`.
    columns.append(RowColumn("timers", transform.time_mode, "processor"))
    return StoreSpec(name=transform.name, changelog_topic=transform.changelog_topic, rows=RowSchema(tuple(columns)))


def store_of_over(over: OverRows) -> StoreSpec:
    """The store of window functions: rows that wait for the watermark, and what the functions read of earlier ones."""
    columns, order = _ordered_rows(over)
    # Types that no stored value has: which earlier rows are kept, and what is kept of them, follows from both.
    columns.append(RowColumn("order", order, "order"))
    columns += [RowColumn("function", str(one), "window function") for one in over.functions]
    return StoreSpec(name=over.name, changelog_topic=over.changelog_topic, rows=RowSchema(tuple(columns)))


def store_of_subscriptions(subscriptions: Subscriptions) -> StoreSpec:
    """The store of the right side of a foreign-key join: its rows, and the keys of the left rows that refer to each.

    Rows and keys are bytes of the join's own store, so all that identifies that one identifies this one.
    """
    columns = store_of(subscriptions.join).rows.columns
    rows = RowSchema((*columns, RowColumn("subscriptions", subscriptions.join.kind, "left keys")))
    return StoreSpec(name=subscriptions.name, changelog_topic=subscriptions.changelog_topic, rows=rows)


def stores_of_branch(branch: Branch) -> tuple[StoreSpec, ...]:
    """The stores of the operators of a branch."""
    stores: list[StoreSpec] = []
    if branch.join is not None:
        stores.append(store_of_join(branch.join))
    if branch.transform is not None:
        stores.append(store_of_transform(branch.transform))
    if branch.over is not None:
        stores.append(store_of_over(branch.over))
    if branch.subscriptions is not None:
        stores.append(store_of_subscriptions(branch.subscriptions))
    if branch.closed is not None:
        stores.append(store_of(branch.closed))
    if branch.deduplication is not None:
        stores.append(store_of_deduplication(branch.deduplication))
    if branch.watermark is not None:
        stores.append(store_of_watermark(branch.watermark))
    if branch.operator is not None:
        stores.append(store_of(branch.operator))
    return tuple(stores)


def input_schema(columns: tuple[tuple[str, str], ...], expressions: tuple[str, ...]) -> RowSchema:
    """The rows of a repartition topic."""
    texts = expressions or tuple(name for name, _ in columns)
    return RowSchema(
        tuple(
            RowColumn("key" if name.startswith("g") else "input", text, str(arrow_type(kind)))
            for text, (name, kind) in zip(texts, columns, strict=True)
        )
    )


def stored_schema(operator: KeyedOperator, source: object) -> StoredSchema:
    """Return the schemas of `operator`, which reads `source`."""
    inputs = input_schema(source.columns, source.expressions) if isinstance(source, RepartitionSource) else None
    return StoredSchema(name=operator.name, state=store_of(operator).rows, inputs=inputs)


def schemas_by_changelog(compiled: CompiledTopology) -> dict[str, StoredSchema]:
    """Return the schemas that the program stores, by changelog topic."""
    schemas: dict[str, StoredSchema] = {}
    for part in compiled.subtopologies:
        for branch in part.branches:
            source = part.sources[branch.source_index]
            for store in stores_of_branch(branch):
                schemas[store.changelog_topic] = StoredSchema(name=store.name, state=store.rows, inputs=None)
            if branch.head is not None:
                schemas[branch.head.changelog_topic] = _schema_of_head(branch, source)
            if branch.operator is not None:
                schemas[branch.operator.changelog_topic] = stored_schema(branch.operator, source)
    return schemas


def _schema_of_head(branch: Branch, source: object) -> StoredSchema:
    """Return the schemas of the operator that takes the rows of `source`, a repartition topic."""
    inputs = input_schema(source.columns, source.expressions) if isinstance(source, RepartitionSource) else None
    store = stores_of_branch(branch)[0]
    return StoredSchema(name=store.name, state=store.rows, inputs=inputs)


def judge_changelog(
    changelog: str, first: tuple[bytes | None, bytes | None] | None, program: StoredSchema, group_id: str
) -> None:
    """Refuse a program whose changelog holds another program's rows.

    Args:
        changelog: the topic's name.
        first: key and value of the first record of its partition 0; None when there is none.
        program: what the program stores.
        group_id: for the remedy's text.

    Raises:
        StateError: `state-schema-changed`; `state-corrupt` for a schema record that cannot be read.
    """
    if first is None:
        return
    key, value = first
    # 1. A published schema: compared column by column, so that the refusal can name what differs.
    if key is not None and key.startswith(SCHEMA_KEY):
        stored = StoredSchema.from_value(value or b"")
        difference = stored.difference(program)
        if difference is None:
            return
        raise schema_changed(changelog, group_id, difference, old=stored, new=program)
    # 2. No schema record in front: the fingerprint of the first row decides, without names.
    # Every row begins with its format and the fingerprint of its schema (`rows`).
    head = bytes([ROW_FORMAT]) + program.state.fingerprint
    if value is None or value[: len(head)] == head:
        return
    found = f"row format {value[0]}" if value[:1] != head[:1] else f"row schema {value[1 : len(head)].hex()}"
    raise schema_changed(changelog, group_id, f"its rows have the {found}, which was not published", new=program)


def schema_changed(
    changelog: str, group_id: str, difference: str, *, new: StoredSchema, old: StoredSchema | None = None
) -> StateError:
    """Return the refusal of a program whose rows would differ from the stored ones."""
    stored = f"stored {old.state}" if old is not None else "stored: unknown"
    return StateError(
        "state-schema-changed",
        f'the state "{new.name}" was stored by another version of the program ({difference}): '
        f"{changelog} has {stored}; this program keeps {new.state}",
        f"Start the old version again: nothing was changed. To go over to this one:  headrace upgrade {group_id} "
        "--program APP --state recompute (from the inputs) or --state keep (new aggregates begin now)",
        changelog=changelog,
        difference=difference,
        old=None if old is None else str(old.state),
        new=str(new.state),
    )
