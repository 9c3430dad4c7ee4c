"""The compiled form of an application: what its tasks read, compute and write, as plain data.

The DSL (`headrace.spark.stream`) writes these nodes, the runtime (`headrace.spark.runtime`) reads them. Nothing here
imports PySpark: recorded calls and user functions are opaque objects, types are Spark's own JSON (`DataType.json()`),
expressions are Spark SQL text. Every collection is a tuple in an order that depends on nothing but the program.

Columns of a row on its way, by name:

- `g0, g1, ..` the grouping values, `i0, i1, ..` the inputs of the aggregate buffers: what a `ProjectForGroup` yields,
  what a repartition topic carries (`RepartitionSource.columns`) and what an `Aggregate` takes;
- `g0.., b0..` the grouping values and the *finished* buffers (an `avg` already divided): what the results of an
  `Aggregate` (`Aggregate.results`) are written over;
- buffers and inputs are ordered by their canonical text (`headrace.spark.analysis.canonical_expressions`), never by
  where they stand in the program: stored rows of two programs that keep the same partial results have the same layout;
- the hidden columns below, carried beside the user's columns by `headrace.spark.frames.apply_calls`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from headrace.checked_api import checked_api
from headrace.client.membership.topology import InternalTopic, Subtopology, Topology
from headrace.formats import Avro, JsonSchema, Protobuf

HIDDEN_PREFIX = "__headrace_"
TASK_COLUMN = "__headrace_task"  # int: which task a row belongs to
KEY_COLUMN = "__headrace_key"  # binary: the key its record will have where the sink names no key columns
OFFSET_COLUMN = "__headrace_offset"  # bigint: of the input record, only while bad records are searched
TOPIC_COLUMN = "__headrace_topic"  # int: its topic among those of the source, beside the offset
EVENT_TIME_COLUMN = "__headrace_event_time"  # timestamp: from withWatermark to the operator that needs it
WINDOW_COLUMN = "__headrace_window"  # struct<start, end>: the window that a row is grouped by
SESSION_END_COLUMN = "__headrace_session_end"  # timestamp: end of a session, beside g0.. and b0..
MARKER_COLUMN = "__headrace_marker"  # binary: in a resident chain, not null in the rows that end a micro-batch
TIMESTAMP_COLUMN = "__headrace_timestamp"  # bigint: timestamp of the input record in ms, where event times are used
# struct<offset, key, value>: the input record of a row, where rows out of time are written to a topic
RECORD_COLUMN = "__headrace_record"
# binary: the trace context that the row's record will have, null where its input record is not sampled
TRACE_COLUMN = "__headrace_trace"
DELETED_COLUMN = "__headrace_deleted"  # boolean: the key of this row has no row any more; its values are the last ones
# boolean: this is the row that its key had before the micro-batch. The new one follows directly, if the key has one.
OLD_COLUMN = "__headrace_old"
COORDINATES_COLUMN = "_kafka"  # struct: key, topic, partition, offset, timestamp, headers of the input record

# Columns of the repartition topic in front of a join: 0 for the left side and 1 for the right one, and the row in the
# form in which the join's store keeps it.
JOIN_COLUMNS = (("side", '"byte"'), ("row", '"binary"'))

# Columns of the repartition topics of a foreign-key join. In front of the subscriptions: the kind of record, the key of
# the left row, and the right row. Kinds: 0, the left row refers to the key of the record; 1, the right row of this key;
# 2, the left row refers to it no more. In front of the join: 0 for a left row and 1 for an answer, the foreign key, and
# the row.
SUBSCRIPTION_COLUMNS = (("side", '"byte"'), ("left", '"binary"'), ("row", '"binary"'))
ANSWER_COLUMNS = (("side", '"byte"'), ("foreign", '"binary"'), ("row", '"binary"'))

# The names of a join's sides in the watermarks that come with their rows.
JOIN_SIDES = ("left", "right")

# Type of a column that F.window makes, in the form of `StructType.json()`.
WINDOW_TYPE = (
    '{"fields":[{"metadata":{},"name":"start","nullable":true,"type":"timestamp"},'
    '{"metadata":{},"name":"end","nullable":true,"type":"timestamp"}],"type":"struct"}'
)

# Column of a repartition topic in front of an aggregate of a table: which of a record's two rows there are. `i0..` are
# the inputs of the new row, `o0..` those of the old one, null where there is none.
CHANGE_COLUMN = ("change", '"byte"')
NEW_ROW, OLD_ROW = 1, 2  # 3: both

# Purged by DeleteRecords once their rows are committed, so time must not delete what is not yet read.
REPARTITION_CONFIGS = (("cleanup.policy", "delete"), ("retention.ms", "-1"))
CHANGELOG_CONFIGS = (("cleanup.policy", "compact"),)

# Single values, named after Kafka's `Serdes`: see `formats.scalars`.
ScalarName: TypeAlias = Literal["bytes", "short", "integer", "long", "float", "double", "boolean", "uuid"]
FormatName: TypeAlias = Literal["json", "string", "raw", "avro", "json_schema", "protobuf", ScalarName]
# Formats in the arguments of users.
ValueFormat: TypeAlias = Literal["json", "string", "raw"] | ScalarName | Avro | JsonSchema | Protobuf
KeyFormat: TypeAlias = Literal["string"] | ScalarName | Avro | JsonSchema | Protobuf
OutputMode: TypeAlias = Literal["update", "append"]
RankFunction: TypeAlias = Literal["row_number", "rank", "dense_rank"]
RowFunction: TypeAlias = Literal["avg", "count", "first", "lag", "last", "max", "min", "sum"]
StateKind: TypeAlias = Literal["value", "list", "map"]
ProcessorInterface: TypeAlias = Literal["row", "pandas"]
TimeMode: TypeAlias = Literal["none", "processingTime", "eventTime"]
JoinKind: TypeAlias = Literal["inner", "left", "right", "full", "left_semi"]
TableJoinKind: TypeAlias = JoinKind | Literal["left_anti"]
BufferFunction: TypeAlias = Literal[
    "count",
    "count_distinct",
    "sum",
    "min",
    "max",
    "avg",
    "max_by",
    "min_by",
    "stddev_pop",
    "stddev_samp",
    "var_pop",
    "var_samp",
    "corr",
    "covar_pop",
    "covar_samp",
    "approx_count_distinct",
    "bit_and",
    "bit_or",
    "bit_xor",
    "product",
    "skewness",
    "kurtosis",
    "regr_sxx",
    "regr_sxy",
    "regr_r2",
    "regr_slope",
    "regr_intercept",
    "collect_list",
    "collect_set",
    "percentile",
    "percentile_approx",
    "mode",
]
# Functions whose state holds the values of their group, and those of them that return the values.
COLLECTING: Final[frozenset[BufferFunction]] = frozenset({"collect_list", "collect_set"})
VALUE_FUNCTIONS: Final[frozenset[BufferFunction]] = COLLECTING | {"percentile", "mode"}


def window_parts(name: str) -> tuple[str, str]:
    """Return the names under which start and end of a window column are stored."""
    return f"{HIDDEN_PREFIX}{name}.start", f"{HIDDEN_PREFIX}{name}.end"


@checked_api()
@dataclass(frozen=True, slots=True)
class DeadLetter:
    """`on_error=DeadLetter("flights.bad")`: records that cannot be processed are written, unchanged, to this topic.

    `on_late` and `on_ahead` take it for records whose event time is out of bounds.
    """

    topic: str


ErrorPolicy: TypeAlias = Literal["fail", "skip"] | DeadLetter
LatePolicy: TypeAlias = Literal["drop"] | DeadLetter
AheadPolicy: TypeAlias = Literal["keep", "drop"] | DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfTime:
    """Policies for the records of a source whose event time is out of bounds."""

    topic: str = ""  # that the records come from
    late: LatePolicy = "drop"
    ahead: AheadPolicy = "keep"  # of records that do not move the watermark: see `max_ahead_us`

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the dead-letter topics. Where there are any, rows carry their records."""
        return tuple(policy.topic for policy in (self.late, self.ahead) if isinstance(policy, DeadLetter))


@dataclass(frozen=True, slots=True, kw_only=True)
class NarrowCall:
    """One DataFrame call of the user, recorded: the method's name and its arguments as they came."""

    method: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()
    where: str = ""  # "file:line" of the user's call


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedKey:
    """The format of a topic's keys, where it is named.

    Attributes:
        columns: The column that a source decodes keys to, or those that a sink writes.
        format: Of the keys.
        serde: The format with its schema, where it has one.
        is_record: Of a sink: whether the columns are the fields of a record. Otherwise the one column is the key.
        may_be_null: Whether there are records without a key.
    """

    columns: tuple[str, ...]
    format: FormatName
    serde: Avro | JsonSchema | Protobuf | None = None
    is_record: bool = False
    may_be_null: bool = True

    @property
    def column(self) -> str:
        """The one column."""
        [column] = self.columns
        return column


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSource:
    """User topics, decoded into columns."""

    name: str
    topics: tuple[str, ...]
    value_format: FormatName
    schema_json: (
        str  # StructType of the columns a record decodes to (for "raw" those of Spark's Kafka source), without `_kafka`
    )
    typed_key: TypedKey | None = None  # its column is the first of the schema
    serde: Avro | JsonSchema | Protobuf | None = None  # with the schema that is read with, where the format has one
    key_column: str | None = None  # the column that equals the record's key, when the user said so
    on_error: ErrorPolicy = "fail"
    on_late: LatePolicy = "drop"
    on_ahead: AheadPolicy = "keep"
    columns_needed: tuple[str, ...] | None = None  # None: all; may hold `_kafka`; never anything hidden
    time_zone: str = "UTC"  # of timestamps in records that name none: the session's
    where: str = ""

    @property
    def dead_letter_topics(self) -> tuple[str, ...]:
        """Return the topics that its records may be written to, by any of its policies."""
        policies = (self.on_error, self.on_late, self.on_ahead)
        return tuple(dict.fromkeys(policy.topic for policy in policies if isinstance(policy, DeadLetter)))


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionSource:
    """An internal topic that one or more `RepartitionSink`s of the same application write."""

    topic: str
    columns: tuple[tuple[str, str], ...]  # (name, Spark type as JSON): g0.., i0..
    expressions: tuple[str, ...] = ()  # as in `ProjectForGroup`
    on_error: ErrorPolicy = "fail"  # that of the streams which write the topic, where all have the same
    origins: tuple[str, ...] = ()  # the topics that these streams read
    has_watermarks: bool = False  # whether records with watermarks of upstream tasks lie between the rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectForGroup:
    """Projection before a repartition or an aggregate: grouping values and the inputs of the buffers."""

    key_sql: tuple[tuple[str, str], ...]  # ("g0", SQL over the columns behind `Branch.before`)
    input_sql: tuple[tuple[str, str], ...]  # ("i0", SQL)
    columns: tuple[tuple[str, str], ...]  # (name, Spark type as JSON) of the result, g0.. then i0..
    bare: bool = False  # nothing but source columns as they are: no Spark SQL is needed; then see `source_columns`
    source_columns: tuple[tuple[str, str], ...] = ()  # when bare: ("g0", column of the source)
    expressions: tuple[str, ...] = ()  # canonical text of each column; what rows of the topic are identified by


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One mergeable part of an aggregate. Null inputs do not count, `count` without input counts rows.

    Spark's rules: `sum` of integers is a bigint (overflow is an error), of float and double a double; `avg` sums
    doubles; `min`/`max` order NaN above every number; `sum`, `min`, `max`, `avg` of nothing are null. The others:
    `aggregate_states`.
    """

    name: str  # "b0"
    function: BufferFunction
    input: str | None  # "i0"; None only for `count` of rows
    input_type: str | None  # Spark type as JSON
    result_type: str  # Spark type as JSON, of the finished buffer
    argument: str = ""  # canonical text of the inputs, "*" for rows: with `function`, what a stored value is known by
    more_inputs: tuple[tuple[str, str], ...] = ()  # ("i1", type): what `max_by` orders by, the second one of `corr`
    parameter: str = ""  # of the function, such as the registers of `approx_count_distinct`; part of `argument` as well

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of all inputs."""
        first = () if self.input is None else (self.input,)
        return (*first, *(name for name, _ in self.more_inputs))


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeWindow:
    """Tumbling or hopping windows `[start, start + size)` of event time, one every `slide`. All times in microseconds.

    A row is grouped by the start of its window; the end follows from it.
    """

    group: str  # "g0": the grouping value that holds the start
    size_us: int
    slide_us: int  # equals the size of tumbling windows
    start_us: int  # start of one window

    @property
    def sql(self) -> str:
        """Return a window as Spark shows it, as SQL over the grouping value.

        Microseconds are added as numbers: an interval of days would be added in the session's time zone.
        """
        end = f"timestamp_micros((unix_micros({self.group}) + {self.size_us}L))"  # as Spark writes a bigint
        return f"named_struct('start', {self.group}, 'end', {end})"

    def start_text(self, time: str) -> str:
        """Return the canonical text of the start of a window over `time`, which is a canonical text."""
        return f"window({time}, size {self.size_us} us, slide {self.slide_us} us, start {self.start_us} us).start"

    def last_end(self, time_us: int) -> int:
        """Return the latest end of a window that is not after `time_us`."""
        first_end = self.start_us + self.size_us
        return first_end + (time_us - first_end) // self.slide_us * self.slide_us

    def late_at(self, starts_us: Any) -> Any:
        """Return the watermark at which a row is late, of each row's window: its end."""
        return starts_us + self.size_us


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionWindow:
    """Sessions `[first, last + gap]` of event time: rows of one key, none more than `gap` after the one before it.

    A row is grouped by its own time, the start of a session that has no other row. The operator joins such sessions.
    """

    group: str  # "g0": the grouping value that holds the time of a row, and the start of a session in results
    gap_us: int

    @property
    def sql(self) -> str:
        """Return a session as Spark shows it, as SQL over the operator's rows."""
        return f"named_struct('start', {self.group}, 'end', {SESSION_END_COLUMN})"

    def start_text(self, time: str) -> str:
        """Return the canonical text of the start of a session over `time`, which is a canonical text."""
        return f"session_window({time}, gap {self.gap_us} us).start"

    def last_end(self, time_us: int) -> int:
        """Return the watermark to send on: a session may end at any time, so it is the watermark itself."""
        return time_us

    def late_at(self, starts_us: Any) -> Any:
        """Return the watermark at which a row is late: any that is after its time (see `session_operator`)."""
        return starts_us + 1


WindowKind: TypeAlias = TimeWindow | SessionWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermark:
    """Clock of a source in front of windows or of a join, with its store: late rows are dropped.

    Rows `g0.., i0..` with `EVENT_TIME_COLUMN` in, the rows on time out. The next step sends the watermark on.
    """

    name: str  # "by-window-watermark": the store's name
    source: str  # name of the source whose rows it judges, or the side of a join
    window: WindowKind | None  # None in front of a join: rows older than the watermark are dropped
    event_time_expression: str  # canonical text
    delay_us: int
    max_ahead_us: int  # by how much an event time may exceed its record's timestamp and still move the watermark
    announces_each_batch: bool  # whether the watermark is sent with each micro-batch, not only when windows close
    out_of_time: OutOfTime = OutOfTime()
    changelog_topic: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedWatermark:
    """The watermark of an operator that closes windows, sent on with their rows (`upstream_clock.announced_by`)."""

    name: str  # "by-window": the operator's store
    side: str = ""  # of the join that reads it

    @property
    def source(self) -> str:
        """Return the name by which readers know the tasks that send it."""
        return self.side or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """A keyed aggregate with its store: rows `g0.., i0..` in, one row per changed key out."""

    name: str  # "by-origin": the store's name, the subtopology's as well behind a repartition
    group_columns: tuple[tuple[str, str], ...]  # (name the user sees, type JSON) of g0, g1, ..
    buffers: tuple[Buffer, ...]
    results: tuple[tuple[str, str], ...]  # (output column, SQL over g0.. and b0..)
    output_schema_json: str  # StructType of the results
    changelog_topic: str
    bare: bool = False  # every result is a g or b as it is: no Spark SQL is needed
    group_expressions: tuple[str, ...] = ()  # canonical text of g0, g1, ..
    window: WindowKind | None = None  # that rows are grouped by, among other columns
    # Canonical text of what decides behind the operator which keys have a row. Where there is such a text, the old row
    # of each changed key goes with the new one (`OLD_COLUMN`): it decides what is taken back.
    changes: str = ""
    takes_partials: bool = False  # `g0..` and stored columns in, not `i0..`: see `RepartitionSink.partials_of`
    where: str = ""

    @property
    def output_columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns g0.., b0.. of its rows, with their types as JSON; behind them the end of a session."""
        groups = [(f"g{at}", kind) for at, (_name, kind) in enumerate(self.group_columns)]
        ends = [(SESSION_END_COLUMN, '"timestamp"')] if isinstance(self.window, SessionWindow) else []
        return (*groups, *((buffer.name, buffer.result_type) for buffer in self.buffers), *ends)

    @property
    def deletes(self) -> bool:
        """Whether some of its rows are deletions, which `DELETED_COLUMN` marks."""
        return False

    @property
    def emits_changes(self) -> bool:
        """Whether its rows are changes: the old row of a key, marked by `OLD_COLUMN`, and its new one."""
        return bool(self.changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedAggregate(Aggregate):
    """An aggregate over windows that close by the watermarks of its sources. Groups of closed windows are deleted."""

    watermark_sources: tuple[str, ...]
    watermark_store: str = ""  # without a repartition topic in front: the store of the clock in the same task
    output_mode: OutputMode = "update"  # "append": one row per group, when its window closes
    idle_timeout_ms: int = 0  # after which a silent upstream task does not hold back windows any more; 0: never

    @property
    def deletes(self) -> bool:
        """Whether some of its rows are deletions: a session that grows has another key, its start and its end."""
        return isinstance(self.window, SessionWindow) and self.output_mode == "update"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAggregate(Aggregate):
    """An aggregate of a table: rows `g0.., i0.., o0.., change` in. Old rows are taken out, new ones are added."""

    @property
    def emits_changes(self) -> bool:
        """Always: a group whose last row is gone has no row any more."""
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoinSide:
    """One side of a table-table join: the columns of its rows, as the store keeps them."""

    columns: tuple[tuple[str, str], ...]  # ("i0", type JSON)
    expressions: tuple[str, ...]  # canonical text of each
    key_expressions: tuple[str, ...]  # canonical text of the values that equal those of the other side


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJoin:
    """A join of two tables on their keys, with its store: the newest row of each side in, changes of the result out.

    Both sides come through one repartition topic: rows `g0..` and `JOIN_COLUMNS`. A null row says that the side has no
    row of this key any more.
    """

    name: str  # "joined-by-customer": the store's name and the subtopology's
    kind: TableJoinKind
    group_columns: tuple[tuple[str, str], ...]  # (name the user sees, type JSON) of g0, g1, ..: the key of the result
    left: TableJoinSide
    right: TableJoinSide
    results: tuple[tuple[str, str], ...]  # (output column, g or i)
    output_schema_json: str  # StructType of the results
    changelog_topic: str
    changes: str  # canonical text: what both tables are, and what decides behind the join which keys have a row
    where: str = ""
    bare = True  # each result is a g or an i as it is
    deletes = False
    emits_changes = True  # always: a key whose rows have no partner any more may have no row

    @property
    def sides(self) -> tuple[TableJoinSide, TableJoinSide]:
        return self.left, self.right

    @property
    def output_columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns g0.., i0.. of its rows, with their types as JSON: those of the left side come first."""
        groups = [(f"g{at}", kind) for at, (_name, kind) in enumerate(self.group_columns)]
        return (*groups, *(column for side in self.sides for column in side.columns))

    @property
    def preserved(self) -> tuple[int, ...]:
        """Return the sides whose rows are in the result without a partner."""
        return {"left": (0,), "right": (1,), "full": (0, 1), "left_anti": (0,)}.get(self.kind, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignKeyJoin(TableJoin):
    """A join of two tables by a column of the left one, with its store: left rows and answers in, changes out.

    Left rows come by their own key, `g0..`, and answers of `Subscriptions` with them: `ANSWER_COLUMNS`. Of `left`,
    `key_expressions` are the foreign key.
    """

    foreign_types: tuple[str, ...]  # of the foreign key, Spark types as JSON
    left_key_expressions: tuple[str, ...]  # canonical texts of g0, g1, ..

    @property
    def answer_columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns of the repartition topic in front of it, with their types as JSON."""
        groups = [(f"g{at}", kind) for at, (_name, kind) in enumerate(self.group_columns)]
        return (*groups, *ANSWER_COLUMNS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriptions:
    """The right table of a foreign-key join by its key, and which left rows refer to each: answers for these out."""

    join: ForeignKeyJoin
    name: str  # "joined-by-customer-subscriptions": the store's name and the subtopology's
    changelog_topic: str

    @property
    def where(self) -> str:
        return self.join.where

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns of its rows: those of the topic that the join reads."""
        return self.join.answer_columns

    @property
    def kept_columns(self) -> tuple[tuple[str, str], ...]:
        """Those of its columns that its rows have: all."""
        return self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class SortColumn:
    """One expression of an ORDER BY."""

    column: str  # "i0"
    descending: bool
    nulls_last: bool

    def __str__(self) -> str:
        return f"{self.column} {'DESC' if self.descending else 'ASC'} NULLS {'LAST' if self.nulls_last else 'FIRST'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopN:
    """The first rows of each key with their store: rows `g0.., i0..` in, one row per changed position out.

    A position counts the rows of a key in their order, from 1. `order` comes first; rows that it leaves equal are
    ordered by `inputs`, ascending with nulls first, so that the result depends on the rows and not on their arrival.
    """

    name: str  # "top-10-by-auction": the store's name, the subtopology's as well behind a repartition
    function: RankFunction
    limit: int  # rows whose rank is at most this are kept
    group_columns: tuple[tuple[str, str], ...]  # (name the user sees, type JSON) of g0, g1, ..
    inputs: tuple[tuple[str, str], ...]  # (name, type JSON) of i0, i1, ..
    order: tuple[SortColumn, ...]
    key_name: str | None  # of the position in the record's key; None where there is only one
    results: tuple[tuple[str, str], ...]  # (output column, SQL over g0.., i0.. and r, the rank)
    output_schema_json: str  # StructType of the results
    changelog_topic: str
    bare: bool = False  # every result is a g, an i or r as it is: no Spark SQL is needed
    group_expressions: tuple[str, ...] = ()  # canonical text of g0, g1, ..
    input_expressions: tuple[str, ...] = ()  # canonical text of i0, i1, ..
    where: str = ""

    @property
    def output_columns(self) -> tuple[tuple[str, str], ...]:
        """Return the columns g0.., i0.. and r of its rows, with their types as JSON."""
        groups = [(f"g{at}", kind) for at, (_name, kind) in enumerate(self.group_columns)]
        return (*groups, *self.inputs, ("r", '"integer"'))

    @property
    def deletes(self) -> bool:
        """Whether a key may come to have fewer rows: ties leave together, and a row number is never vacant again."""
        return self.function != "row_number"

    @property
    def emits_changes(self) -> bool:
        """Never: its rows are the newest ones of their positions."""
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowedTopN(TopN):
    """A top-N by windows that close, among other columns. Rows of closed windows are deleted from its store."""

    window: TimeWindow
    watermark_sources: tuple[str, ...]
    watermark_store: str = ""  # as in `WindowedAggregate`
    output_mode: OutputMode = "update"  # "append": the first rows of a key, when its window closes
    idle_timeout_ms: int = 0

    @property
    def deletes(self) -> bool:
        """Whether a key may come to have fewer rows: not if its rows leave when they are final."""
        return self.output_mode == "update" and self.function != "row_number"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deduplication:
    """Deduplication in event time with its store: rows with `EVENT_TIME_COLUMN` in, the first of each set out."""

    name: str  # "unique-by-id": the store's name
    key_columns: tuple[tuple[str, str], ...]  # (column, type JSON)
    key_expressions: tuple[str, ...]  # canonical text of each
    event_time_expression: str  # canonical text; empty: all rows have the same event time, and keys stay for ever
    delay_us: int
    max_ahead_us: int  # by how much an event time may exceed its record's timestamp and still move the watermark
    out_of_time: OutOfTime = OutOfTime()
    changelog_topic: str
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeOrder:
    """A comparison of timestamps of both sides in the condition of a join: `earlier` is not after `later`."""

    side: int  # that has `earlier`; the other one has `later`
    earlier: str  # name of a stored column
    later: str
    is_strict: bool  # whether they must differ


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBound:
    """The latest event time of rows of the other side that a row can match: a stored timestamp, less `shift_us`."""

    column: str
    shift_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinSide:
    """One side of a stream-stream join: the columns of its rows that are kept."""

    columns: tuple[tuple[str, str], ...]  # (column behind the join, type JSON)
    expressions: tuple[str, ...]  # canonical text of each
    key_expressions: tuple[str, ...]  # canonical text of the values that equal those of the other side
    times: tuple[tuple[str, str], ...] = ()  # (name, canonical text) of timestamps that only the condition reads
    bounds: tuple[TimeBound, ...] = ()  # all of them hold; none: rows are kept for ever

    @property
    def stored(self) -> tuple[tuple[str, str, str], ...]:
        """Return name, type JSON and canonical text of each stored column. A window is stored as its start and end."""
        found: list[tuple[str, str, str]] = []
        for (name, kind), text in zip(self.columns, self.expressions, strict=True):
            if kind == WINDOW_TYPE:
                parts = zip(window_parts(name), ("start", "end"), strict=True)
                found += [(part, '"timestamp"', f"{text}.{field}") for part, field in parts]
            else:
                found.append((name, kind, text))
        return (*found, *((name, '"timestamp"', text) for name, text in self.times))

    @property
    def stored_columns(self) -> tuple[tuple[str, str], ...]:
        """Return name and type of each stored column."""
        return tuple((name, kind) for name, kind, _ in self.stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """An equi-join of two streams with its store: rows of both sides in, one row per pair out.

    Both sides come through one repartition topic, each record with the side of its row (`JOIN_COLUMNS`).
    """

    name: str  # "joined-by-id": the store's name and the subtopology's
    key_types: tuple[str, ...]  # Spark types as JSON, of both sides
    left: JoinSide
    right: JoinSide
    columns: tuple[tuple[str, str], ...]  # (name, type JSON) of the result; those that no sink depends on are not kept
    changelog_topic: str
    kind: JoinKind = "inner"
    in_event_time: bool = False  # both sides have a watermark, and rows are deleted by them
    orders: tuple[TimeOrder, ...] = ()  # the condition, beside the key
    is_distinct: bool = False  # equal rows of a side count once, and so do equal rows of the result
    is_versioned: bool = False  # right rows are versions of their key: the newest one at the time of a left row counts
    # By whose watermarks rows of the left and of the right side are known to be complete.
    watermark_sources: tuple[tuple[str, ...], tuple[str, ...]] = (("left",), ("right",))
    idle_timeout_ms: int = 0  # as in `WindowedAggregate`
    where: str = ""

    @property
    def sides(self) -> tuple[JoinSide, JoinSide]:
        return self.left, self.right

    @property
    def kept_columns(self) -> tuple[tuple[str, str], ...]:
        """Those of the result's columns that rows of the sides have, in the order of the result."""
        kept = {name for side in self.sides for name, _ in side.columns}
        return tuple(column for column in self.columns if column[0] in kept)

    @property
    def expiry_text(self) -> str:
        """Return what decides in event time which rows are kept, and for how long, in canonical texts."""
        texts = [{name: text for name, _, text in side.stored} for side in self.sides]
        parts: list[str] = [self.kind]
        for order in self.orders:
            earlier, later = texts[order.side][order.earlier], texts[1 - order.side][order.later]
            parts.append(f"{JOIN_SIDES[order.side]} {earlier} {'<' if order.is_strict else '<='} {later}")
        for role, side, known in zip(JOIN_SIDES, self.sides, texts, strict=True):
            parts += [f"{role} until {known[bound.column]} less {bound.shift_us} us" for bound in side.bounds]
        parts += ["distinct"] if self.is_distinct else []
        return ", ".join([*parts, *(["newest version of right"] if self.is_versioned else [])])

    @property
    def preserved(self) -> tuple[int, ...]:
        """Return the sides whose rows leave without a partner when none can come any more."""
        return {"left": (0,), "right": (1,), "full": (0, 1)}.get(self.kind, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class StateVariable:
    """A variable of a stateful processor, as its `init` declares it."""

    name: str
    kind: StateKind
    columns: tuple[tuple[str, str], ...]  # (name, type JSON) of a value, of an element, or of a value of a map
    key_columns: tuple[tuple[str, str], ...] = ()  # of a key of a map
    ttl_ms: int | None = None  # after which a value expires, by processing time
    schemas: tuple[str, ...] = ()  # as the program wrote them: DDL text or JSON; of a map, that of its keys first


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """Rows that a processor takes before the first rows of a task, each once."""

    rows: bytes = field(repr=False)  # Arrow IPC: g0, .., i0, .. and `KEY_COLUMN`
    row_columns: tuple[tuple[str, str], ...]  # as in `Transform`


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """A stateful processor of the user with its store: rows `g0.., i0..` in, rows of the processor out."""

    name: str  # "transformed-by-id": the store's name and the subtopology's
    processor: bytes = field(repr=False)  # pickled: each task begins each micro-batch with a copy of its own
    processor_name: str
    interface: ProcessorInterface
    time_mode: TimeMode
    group_columns: tuple[tuple[str, str], ...]  # (name the user sees, type JSON) of g0, g1, ..
    inputs: tuple[tuple[str, str], ...]  # (name, type JSON) of i0, i1, ..
    row_columns: tuple[tuple[str, str], ...]  # (column the processor sees, the g or i that it is), in order
    variables: tuple[StateVariable, ...]  # by name
    columns: tuple[tuple[str, str], ...]  # (name, type JSON) of the processor's rows
    changelog_topic: str
    time_zone: str = "UTC"  # of the timestamps that the processor sees: the session's
    group_expressions: tuple[str, ...] = ()  # canonical text of g0, g1, ..
    watermark_sources: tuple[str, ...] = ()  # by whose watermarks timers of event time are due
    idle_timeout_ms: int = 0  # as in `WindowedAggregate`
    initial: InitialState | None = None
    where: str = ""

    @property
    def kept_columns(self) -> tuple[tuple[str, str], ...]:
        """Those of its columns that its rows have: all, since the processor makes them."""
        return self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class OverFunction:
    """A function over the rows around a row, those of its key in the order of event time: `avg(x) OVER (..)`.

    Its frame begins and ends so many rows (`"rows"`) or microseconds (`"range"`) from the row, 0 or less. A range that
    ends at the row ends behind the last row of the same order. `lag` takes the one row at `begin`.
    """

    function: RowFunction
    column: str | None  # the g or i whose values it takes; None: rows are counted
    expression: str  # canonical text of the column
    result_type: str  # Spark type as JSON
    unit: Literal["rows", "range"]
    begin: int | None  # None: with the first row of the key
    end: int

    def __str__(self) -> str:
        if self.function == "lag":
            return f"lag({self.expression}, {-(self.begin or 0)})"
        begin = "UNBOUNDED" if self.begin is None else f"{-self.begin}{' us' if self.unit == 'range' else ''}"
        end = "CURRENT ROW" if self.end == 0 else f"{-self.end} PRECEDING"
        argument = "*" if self.column is None else self.expression
        return f"{self.function}({argument}) {self.unit.upper()} BETWEEN {begin} PRECEDING AND {end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverRows:
    """Window functions in event time with their store: rows `g0.., i0..` in, each once with the functions' values out.

    A row leaves when the watermark has passed its event time, so all rows before it are known. Rows that `order` leaves
    equal are ordered by `inputs`, as in `TopN`.
    """

    name: str  # "avg10-by-seller": the store's name and the subtopology's
    group_columns: tuple[tuple[str, str], ...]  # (name the user sees, type JSON) of g0, g1, ..
    inputs: tuple[tuple[str, str], ...]  # (name, type JSON) of i0, i1, ..
    order: tuple[SortColumn, ...]  # the event time first, ascending
    functions: tuple[OverFunction, ...]  # f0, f1, ..
    columns: tuple[tuple[str, str], ...]  # (name, type JSON) of its rows
    origins: tuple[str, ...]  # of each column: the g, i or f that it is
    changelog_topic: str
    group_expressions: tuple[str, ...] = ()  # canonical text of g0, g1, ..
    input_expressions: tuple[str, ...] = ()  # canonical text of i0, i1, ..
    watermark_sources: tuple[str, ...] = ()
    idle_timeout_ms: int = 0  # as in `WindowedAggregate`
    where: str = ""

    @property
    def kept_columns(self) -> tuple[tuple[str, str], ...]:
        """Those of its columns that its rows have: all."""
        return self.columns

    @property
    def history_rows(self) -> int:
        """Return how many rows before a row the functions read, of those whose frame is so many rows."""
        return max((-one.begin for one in self.functions if one.unit == "rows" and one.begin is not None), default=0)

    @property
    def history_us(self) -> int:
        """Return how far before a row the functions read, of those whose frame is a range of time."""
        return max((-one.begin for one in self.functions if one.unit == "range" and one.begin is not None), default=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """Sink that writes rows to a user topic.

    `key_columns` None takes the carried `KEY_COLUMN`: the input record's key for a stateless branch, and
    `formats.encode_key` of the grouping values (under their user-visible names) behind an aggregate.
    """

    topic: str
    value_format: FormatName = "json"
    serde: Avro | JsonSchema | Protobuf | None = None  # with its schema and subject, where the format has one
    key_columns: tuple[str, ...] | None = None
    typed_key: TypedKey | None = None  # of `key_columns`
    value_columns: tuple[str, ...] = ()  # in order: the visible columns of the rows
    output_mode: OutputMode = "update"
    partitions: int | None = None  # the consent to create the topic when it is missing
    where: str = ""

    @property
    def registered_serdes(self) -> tuple[Avro | JsonSchema | Protobuf, ...]:
        """Return the formats of keys and values whose schemas are in a registry."""
        of_key = None if self.typed_key is None else self.typed_key.serde
        return tuple(serde for serde in (of_key, self.serde) if serde is not None and serde.registry is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RepartitionSink:
    """Sink that writes rows `g0.., i0..` to an internal topic, partitioned by `g0..` without the time of a session.

    For a join, a row whose `g0..` contain a null is left out: it equals no row. The value of the others is
    `JOIN_COLUMNS`.
    """

    topic: str
    columns: tuple[tuple[str, str], ...]  # as in the RepartitionSource
    expressions: tuple[str, ...] = ()
    watermark: Watermark | RelayedWatermark | None = None  # sent to every partition of the topic
    source_topics: tuple[str, ...] = ()  # of the watermark's source: their partitions are the upstream tasks
    join: Join | None = None  # that takes the rows: `i0..` are the columns of a side
    join_side: int = 0  # 0: left, 1: right
    # Rows are changes of a table. In front of an aggregate, `columns` end in `o0..` and `CHANGE_COLUMN`; in front of
    # `table_join`, they are `g0..` and `JOIN_COLUMNS`.
    takes_changes: bool = False
    table_join: TableJoin | None = None
    subscriptions_topic: str = ""  # of a foreign-key join: where its left side sends what its rows refer to
    subscription_expressions: tuple[str, ...] = ()  # of that topic
    # The aggregate behind the topic, if its functions merge: `columns` are `g0..` and its stored columns, made of
    # `row_columns`. Where `combines`, a record may be made of many rows.
    partials_of: Aggregate | None = None
    row_columns: tuple[tuple[str, str], ...] = ()
    combines: bool = False

    @property
    def topics(self) -> tuple[str, ...]:
        """Return the topics that it writes."""
        return (self.topic, self.subscriptions_topic) if self.subscriptions_topic else (self.topic,)

    @property
    def key_columns(self) -> tuple[str, ...]:
        """Return the grouping values that name the partition: all rows of a key's sessions go to one task."""
        window = self.watermark.window if isinstance(self.watermark, Watermark) else None
        time = window.group if isinstance(window, SessionWindow) else None
        return tuple(name for name, _ in self.columns if name.startswith("g") and name != time)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeachBatchSink:
    """Sink that passes the rows of a micro-batch to the user's `function(dataframe, batch_id)`."""

    function: Callable[[Any, int], None]
    name: str = "foreachBatch"
    columns: tuple[str, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSink:
    """Exactly-once sink outside of Kafka; `sink` is a `headrace.spark.sinks.Sink`."""

    sink: Any
    name: str
    columns: tuple[str, ...]
    schema_json: str  # StructType of the columns
    deletes: bool = False  # whether keys may lose their row: the sink gets `DELETED_COLUMN` as well
    where: str = ""


Source: TypeAlias = TopicSource | RepartitionSource
Sink: TypeAlias = TopicSink | RepartitionSink | ForeachBatchSink | TableSink
# Operators that take rows `g0.., i0..` of a `ProjectForGroup` and yield the newest row of each changed key. Their
# attributes `name`, `group_columns`, `output_columns`, `results`, `bare`, `deletes`, `emits_changes`, `changelog_topic`
# and `where` are all that most modules need; `runtime.keyed_operators` runs each kind.
KeyedOperator: TypeAlias = Aggregate | TopN | TableJoin
Leaving: TypeAlias = TopicSink | ForeachBatchSink | TableSink  # what a user declares


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One path of rows from a source of the subtopology to a sink.

    In order: `join`, `transform`, `over` or `subscriptions` of the source's rows, or `closed`, the windows of its rows
    that close, `before` on the columns, `deduplication`, `between` on its rows, `projection`, `watermark`, `operator`,
    its results, `after` on them, `onward`, `sink`.
    """

    source_index: int
    join: Join | None = None
    transform: Transform | None = None
    over: OverRows | None = None
    subscriptions: Subscriptions | None = None
    closed: WindowedAggregate | None = None  # with its results: one row per group of a closed window
    before: tuple[NarrowCall, ...] = ()
    deduplication: Deduplication | None = None
    between: tuple[NarrowCall, ...] = ()
    projection: ProjectForGroup | None = None  # None behind a RepartitionSource, whose rows are projected already
    watermark: Watermark | None = None
    operator: KeyedOperator | None = None
    after: tuple[NarrowCall, ...] = ()
    onward: ProjectForGroup | None = None  # in front of the repartition topic of an aggregate behind `operator`
    sink: Sink

    @property
    def head(self) -> Join | Transform | OverRows | Subscriptions | WindowedAggregate | None:
        """Return the operator in front of everything else, which makes the rows that `before` takes."""
        return self.row_operator or self.closed

    @property
    def row_operator(self) -> Join | Transform | OverRows | Subscriptions | None:
        """Return the operator in front that makes rows of a stream."""
        return self.join or self.transform or self.over or self.subscriptions

    @property
    def out_of_time(self) -> OutOfTime:
        """Return the policies for rows whose event time is out of bounds."""
        clock = self.watermark or self.deduplication
        return OutOfTime() if clock is None else clock.out_of_time

    @property
    def aggregate(self) -> Aggregate | None:
        """Return the operator if it is an aggregate."""
        return self.operator if isinstance(self.operator, Aggregate) else None

    @property
    def changelog_topics(self) -> tuple[str, ...]:
        """Return the changelog of each store of the branch."""
        stores = (self.head, self.deduplication, self.watermark, self.operator)
        return tuple(node.changelog_topic for node in stores if node is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSubtopology:
    """One kind of task: task p reads partition p of every source."""

    subtopology_id: str
    sources: tuple[Source, ...]
    branches: tuple[Branch, ...]
    follows_traces: bool = False  # whether sampled input records are traced, and their rows carry the contexts on

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        return tuple(branch.aggregate for branch in self.branches if branch.aggregate is not None)

    @property
    def operators(self) -> tuple[KeyedOperator, ...]:
        return tuple(branch.operator for branch in self.branches if branch.operator is not None)

    @property
    def changelog_topics(self) -> tuple[str, ...]:
        """Return the changelog of each store; none for a subtopology without state."""
        return tuple(topic for branch in self.branches for topic in branch.changelog_topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledTopology:
    """The whole application, with subtopologies sorted by id."""

    app_name: str
    subtopologies: tuple[CompiledSubtopology, ...]

    def following_traces(self) -> CompiledTopology:
        """Return the same topology with rows that carry the trace contexts of their records."""
        return replace(self, subtopologies=tuple(replace(part, follows_traces=True) for part in self.subtopologies))

    def description(self) -> Topology:
        """Return the topology of `compiled` as KIP-1071 defines it for heartbeats, with all lists sorted."""
        parts = sorted(self.subtopologies, key=lambda subtopology: subtopology.subtopology_id)
        return Topology(epoch=0, subtopologies=tuple(_describe(subtopology) for subtopology in parts))

    def topic_sinks(self) -> tuple[TopicSink, ...]:
        """Return the sinks that write to user topics, of all subtopologies in order."""
        sinks = [branch.sink for part in self.subtopologies for branch in part.branches]
        return tuple(sink for sink in sinks if isinstance(sink, TopicSink))

    def topic_layers(self) -> list[list[str]]:
        """Return the topics that are read, in the order in which they stop growing when user topics do.

        User topics are first. An internal topic is behind all topics that are read by what writes it.
        """
        topics_read = {
            part.subtopology_id: [topic for source in part.sources for topic in _topics_of(source)]
            for part in self.subtopologies
        }
        depths: dict[str, int] = {}

        def depth_of(topic: str) -> int:
            if topic not in depths:
                writers = [
                    part.subtopology_id
                    for part in self.subtopologies
                    for branch in part.branches
                    if isinstance(branch.sink, RepartitionSink) and topic in branch.sink.topics
                ]
                depths[topic] = 1 + max((depth_of(one) for name in writers for one in topics_read[name]), default=-1)
            return depths[topic]

        for topics in topics_read.values():
            for topic in topics:
                depth_of(topic)
        return [
            sorted(topic for topic, depth in depths.items() if depth == layer) for layer in sorted(set(depths.values()))
        ]

    def subtopology(self, subtopology_id: str) -> CompiledSubtopology:
        for subtopology in self.subtopologies:
            if subtopology.subtopology_id == subtopology_id:
                return subtopology
        raise KeyError(subtopology_id)


def _topics_of(source: Source) -> tuple[str, ...]:
    return (source.topic,) if isinstance(source, RepartitionSource) else source.topics


def _describe(subtopology: CompiledSubtopology) -> Subtopology:
    source_topics = {
        topic for source in subtopology.sources if isinstance(source, TopicSource) for topic in source.topics
    }
    repartition_sources = {source.topic for source in subtopology.sources if isinstance(source, RepartitionSource)}
    repartition_sinks = {
        topic
        for branch in subtopology.branches
        if isinstance(branch.sink, RepartitionSink)
        for topic in branch.sink.topics
    }
    changelogs = set(subtopology.changelog_topics)
    return Subtopology(
        subtopology_id=subtopology.subtopology_id,
        source_topics=tuple(sorted(source_topics)),
        repartition_source_topics=_internal(repartition_sources, REPARTITION_CONFIGS),
        repartition_sink_topics=tuple(sorted(repartition_sinks)),
        state_changelog_topics=_internal(changelogs, CHANGELOG_CONFIGS),
        copartition_groups=(),  # a task with several sources here has no state that joins them
    )


def _internal(topics: set[str], configs: tuple[tuple[str, str], ...]) -> tuple[InternalTopic, ...]:
    # 0 partitions and 0 replicas: the coordinator derives the former from the sources, the broker takes its default.
    return tuple(
        InternalTopic(name=topic, partitions=0, replication_factor=0, configs=configs) for topic in sorted(topics)
    )
