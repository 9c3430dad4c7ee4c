"""Top-N against a plain reference: any cuts, ties, nulls, undone batches, restores. And its order against Spark."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.spark.runtime.operators import top_n_operator
from headrace.spark.runtime.operators.top_n_operator import TopNOperator
from headrace.spark.runtime.stores.order_codes import codes_of, sorted_rows
from headrace.spark.runtime.stores.store import (
    BatchKey,
    StoreIdentity,
    StorePosition,
    StoreReader,
    StoreWrites,
    TaskStore,
)
from headrace.spark.topology.nodes import DELETED_COLUMN, KEY_COLUMN, TASK_COLUMN, RankFunction, SortColumn, TopN

Bid = tuple[str | None, int | None, str | None]  # auction, price, bidder
TOP = TopN(
    name="top-3-by-auction",
    function="row_number",
    limit=3,
    group_columns=(("auction", '"string"'),),
    inputs=(("i0", '"long"'), ("i1", '"string"')),
    order=(SortColumn(column="i0", descending=True, nulls_last=True),),
    key_name="rn",
    results=(("auction", "g0"), ("price", "i0"), ("bidder", "i1"), ("rn", "r")),
    output_schema_json="",
    changelog_topic="app-top-3-by-auction-changelog",
    group_expressions=("auction",),
    input_expressions=("price", "bidder"),
)


def reference(bids: Sequence[Bid], top: TopN) -> dict[tuple[str | None, int], tuple[Any, ...]]:
    """Return (auction, position) → (price, bidder, rank), for one sort column, the price: the rules word by word."""
    [by] = top.order
    found: dict[tuple[str | None, int], tuple[Any, ...]] = {}
    for auction in {bid[0] for bid in bids}:
        mine = [bid for bid in bids if bid[0] == auction]
        mine.sort(key=lambda bid: (bid[2] is not None, bid[2] or ""))  # ties: the other column, nulls first
        values = [bid for bid in mine if bid[1] is not None]
        values.sort(key=lambda bid: bid[1] or 0, reverse=by.descending)  # `reverse` keeps equal ones in order
        nulls = [bid for bid in mine if bid[1] is None]
        ordered = values + nulls if by.nulls_last else nulls + values
        distinct = list(dict.fromkeys(bid[1] for bid in ordered))
        for position, (_, price, bidder) in enumerate(ordered, start=1):
            first = 1 + next(at for at, bid in enumerate(ordered) if bid[1] == price)
            rank = {"row_number": position, "rank": first, "dense_rank": 1 + distinct.index(price)}[top.function]
            if rank <= top.limit:
                found[auction, position] = (price, bidder, rank)
    return found


@dataclass
class Task:
    """A task's store and changelog, as the stateful step and the driver treat them, and what its topic holds."""

    directory: Path
    top: TopN = TOP
    store: TaskStore = field(init=False)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    topic: dict[tuple[str | None, int], tuple[Any, ...]] = field(default_factory=dict)
    published: int = 0
    deleted: int = 0
    committed: BatchKey | None = None
    batch: int = 0
    restores: int = 0

    def __post_init__(self) -> None:
        self.store = self._opened()

    def _opened(self) -> TaskStore:
        [spec] = TopNOperator(self.top).stores
        identity = StoreIdentity(changelog_topic_id="t", schema_hash=spec.rows.hash, boot_id="b")
        return TaskStore(self.directory / f"store-{self.restores}", identity)

    def run(self, bids: Sequence[Bid], *, commits: bool = True, tables: int = 1) -> None:
        """Run a micro-batch, and apply its rows to the topic if it commits."""
        self.batch += 1
        key = BatchKey(incarnation="run", batch_id=self.batch)
        operator = TopNOperator(self.top, with_key=True).start()
        operator.begin(key)
        rows = table_of(bids)
        for piece in np.array_split(np.arange(rows.num_rows), tables):
            if len(piece):
                operator.on_rows(0, rows.slice(int(piece[0]), len(piece)))
        changes = operator.end(0)
        position = StorePosition(batch=key, input_offsets={}, changelog_offset=0)
        written = [StoreWrites(keys=pa.array([], pa.binary()), values=pa.array([], pa.binary()))]
        if changes is not None:
            [change] = changes.stores

            def update(reader: StoreReader) -> StoreWrites:
                assert hasattr(change, "update")
                written.append(change.update(reader))
                return written[-1]

            self.store.update(self.committed, position, update).prepare(len(self.changelog))
        else:
            self.store.update(self.committed, position, lambda _: written[0]).prepare(None)
        if not commits:
            return
        self.committed = key
        self.changelog += zip(written[-1].keys.to_pylist(), written[-1].values.to_pylist(), strict=True)
        if changes is not None:
            self._publish(changes.results())

    def _publish(self, rows: pa.Table) -> None:
        before = Counter((auction, price, bidder) for (auction, _), (price, bidder, _) in self.topic.items())
        for row in rows.to_pylist():
            parts = json.loads(row[KEY_COLUMN])
            key = parts.get("auction"), parts[self.top.key_name]
            assert parts.get("auction") == row["g0"]
            self.published += 1
            if row.get(DELETED_COLUMN):
                self.deleted += 1
                assert self.topic.pop(key) == (row["i0"], row["i1"], row["r"])  # with the values it had
            else:
                # Nothing is published that is there already, except where rows that are equal moved up or down.
                moved = before[row["g0"], row["i0"], row["i1"]] > 1
                assert moved or self.topic.get(key) != (row["i0"], row["i1"], row["r"])
                self.topic[key] = row["i0"], row["i1"], row["r"]

    def restore(self) -> None:
        """Go on with a new store that is made of the changelog alone."""
        if self.committed is None:  # nothing to stand at
            return
        self.store.close()
        self.restores += 1
        self.store = self._opened()
        writer = BatchKey(incarnation="restore", batch_id=self.restores)
        self.store.begin_replay(writer, 0, len(self.changelog))
        keys, values = zip(*self.changelog, strict=True) if self.changelog else ((), ())
        self.store.load(writer, pa.array(keys, pa.binary()), pa.array(values, pa.binary()), len(self.changelog))
        over = self.store.position()
        assert over is not None
        self.store.assign_position(self.committed, {}, over=over)

    def content(self) -> dict[bytes, bytes]:
        """Store key → value, of the committed values."""
        self.store.resolve_prepared(self.committed)
        return dict(self.store.values())


def table_of(bids: Sequence[Bid]) -> pa.Table:
    return pa.table(
        {
            "g0": pa.array([bid[0] for bid in bids], pa.string()),
            "i0": pa.array([bid[1] for bid in bids], pa.int64()),
            "i1": pa.array([bid[2] for bid in bids], pa.string()),
            TASK_COLUMN: pa.array([0] * len(bids), pa.int32()),
        }
    )


@pytest.fixture
def new_task(tmp_path: Path) -> Iterator[Callable[..., Task]]:
    made: list[Task] = []

    def make(top: TopN = TOP) -> Task:
        made.append(Task(Path(tempfile.mkdtemp(dir=tmp_path)), top))
        return made[-1]

    yield make
    for task in made:
        task.store.close()


BIDS = st.lists(
    st.tuples(
        st.sampled_from([None, "", "a", "ab", "a\x00\x00\x00\x00", "x" * 479, "x" * 476, "x" * 477]),
        st.one_of(st.none(), st.integers(-3, 3), st.sampled_from([-(1 << 63), (1 << 63) - 1])),
        st.sampled_from([None, "", "p", "q", "é"]),
    ),
    max_size=60,
)
CUTS = st.lists(st.tuples(st.integers(0, 12), st.sampled_from(["commit", "undo", "restore"])), max_size=30)
FUNCTIONS: list[RankFunction] = ["row_number", "rank", "dense_rank"]


@settings(max_examples=200, deadline=None)
@given(
    bids=BIDS,
    cuts=CUTS,
    function=st.sampled_from(FUNCTIONS),
    limit=st.sampled_from([1, 2, 3, 5, 20]),
    order=st.tuples(st.booleans(), st.booleans()),
    tables=st.integers(1, 3),
)
@example(  # two equal rows move down by one: the second place has an equal row again
    bids=[("", None, ""), ("", None, ""), ("", None, None)],
    cuts=[(2, "commit")],
    function="rank",
    limit=1,
    order=(False, False),
    tables=1,
)
def test_results_do_not_depend_on_cuts_undone_batches_and_restores(
    bids: list[Bid],
    cuts: list[tuple[int, str]],
    function: RankFunction,
    limit: int,
    order: tuple[bool, bool],
    tables: int,
) -> None:
    by = SortColumn(column="i0", descending=order[0], nulls_last=order[1])
    top = replace(TOP, function=function, limit=limit, order=(by,))
    with tempfile.TemporaryDirectory() as directory:
        task = Task(Path(directory), top)
        try:
            at = 0
            for size, outcome in [*cuts, (len(bids), "commit")]:
                if outcome == "restore":
                    before = task.content()
                    task.restore()
                    assert task.content() == before
                piece = bids[at : at + size]
                task.run(piece, commits=outcome != "undo", tables=tables)
                at += len(piece) if outcome != "undo" else 0
                assert task.topic == reference(bids[:at], top)
                assert task.store.count() >= len(task.topic)  # an undone batch is undone by the next one
            task.store.resolve_prepared(task.committed)
            assert task.store.count() == len(task.topic)
            mixed = list(bids)
            random.Random(len(bids)).shuffle(mixed)
            assert reference(mixed, top) == task.topic
        finally:
            task.store.close()


@pytest.mark.parametrize("function", FUNCTIONS)
def test_waiting_rows_are_reduced(
    new_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, function: RankFunction
) -> None:
    """Rows of a micro-batch wait in memory; from a limit on only those that may be among the first ones."""
    monkeypatch.setattr(top_n_operator, "ENOUGH", 10)
    chance = random.Random(5)
    bids: list[Bid] = [(chance.choice("abc"), chance.randrange(40), chance.choice("pq")) for _ in range(400)]
    top = replace(TOP, function=function)
    task = new_task(top)
    task.run(bids, tables=40)
    assert task.topic == reference(bids, top)


def test_state_has_n_rows_a_key_and_a_row_that_enters_is_one_write(new_task: Callable[..., Task]) -> None:
    task = new_task()
    task.run([("a", price, "p") for price in range(100)])
    assert (task.store.count(), len(task.changelog), task.published) == (3, 3, 3)
    task.run([("a", 50, "p")])  # not among the first ones
    assert (task.store.count(), len(task.changelog), task.published) == (3, 3, 3)
    task.run([("a", 1000, "p")])  # takes the slot of the one that leaves; all positions have other rows
    assert (task.store.count(), len(task.changelog), task.published) == (3, 4, 6)
    assert [task.topic["a", position] for position in (1, 2, 3)] == [(1000, "p", 1), (99, "p", 2), (98, "p", 3)]


def test_ties_that_leave_are_deleted_from_topic_and_store(new_task: Callable[..., Task]) -> None:
    task = new_task(replace(TOP, function="rank", limit=1, key_name="row_number"))
    task.run([("a", 5, bidder) for bidder in "pqrstuvw"])
    assert (len(task.topic), task.store.count(), task.deleted) == (8, 8, 0)
    task.run([("a", 6, "p"), ("b", 1, "p")])
    assert task.topic == {("a", 1): (6, "p", 1), ("b", 1): (1, "p", 1)}
    assert (task.store.count(), task.deleted) == (2, 7)
    assert sum(value is None for _, value in task.changelog) == 7
    task.restore()
    task.run([("a", 6, "q")])
    assert task.topic["a", 2] == (6, "q", 1)


def test_a_long_stream_in_random_cuts(new_task: Callable[..., Task]) -> None:
    """20,000 bids on 500 auctions, a tenth of them with equal prices; the order of arrival changes nothing."""
    chance = random.Random(7)
    bids: list[Bid] = [
        (
            f"auction-{chance.randrange(500)}",
            chance.choice([1_000, chance.randrange(5_000)]),
            f"p{chance.randrange(90)}",
        )
        for _ in range(20_000)
    ]
    topics = []
    for _ in range(2):
        task, at = new_task(), 0
        while at < len(bids):
            size = chance.choice([1, 60, 3_000])
            task.run(bids[at : at + size])
            at += size
        assert task.store.count() == 500 * 3
        topics.append(task.topic)
        chance.shuffle(bids)
    assert topics[0] == topics[1] == reference(bids, TOP)


def test_the_only_row_of_a_key_has_no_position_in_its_key(new_task: Callable[..., Task]) -> None:
    operator = TopNOperator(replace(TOP, limit=1, key_name=None), with_key=True).start()
    operator.begin(BatchKey(incarnation="run", batch_id=1))
    operator.on_rows(0, table_of([("a", 1, "p"), ("a", 2, "p")]))
    changes = operator.end(0)
    assert changes is not None
    task = new_task()
    position = StorePosition(batch=BatchKey(incarnation="run", batch_id=1), input_offsets={}, changelog_offset=0)
    [change] = changes.stores
    assert hasattr(change, "update")
    task.store.update(None, position, change.update).abandon()
    [row] = changes.results().to_pylist()
    assert (row[KEY_COLUMN], row["i0"], DELETED_COLUMN in row) == (b"a", 2, False)


NAN, INF = math.nan, math.inf
SAMPLES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False]),
    "tinyint": (pa.int8(), [-128, 0, 127]),
    "bigint": (pa.int64(), [-(1 << 63), -1, 0, 1, (1 << 63) - 1]),
    "float": (pa.float32(), [NAN, -INF, INF, 0.0, -0.0, 1.5, -1.5, 1e-45]),
    "double": (pa.float64(), [NAN, -NAN, -INF, INF, 0.0, -0.0, 5e-324, -5e-324, 1e308]),
    "decimal(10,2)": (pa.decimal128(10, 2), [*map(decimal.Decimal, ("-99999999.99", "0.00", "1.10", "-0.01"))]),
    "decimal(38,6)": (
        pa.decimal128(38, 6),
        [*map(decimal.Decimal, ("-" + "9" * 32 + ".5", "-1", "-0.000001", "0", "1", "18446744073709.551616"))],
    ),
    "string": (pa.string(), ["", "a", "A", "aa", "b", "é", "z", "\U0001f600", "\uffee", "a\x00", "a\x00b"]),
    "binary": (pa.binary(), [b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff\x00"]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 12, 31, 23, tzinfo=dt.UTC), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)],
    ),
}  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("kind", SAMPLES)
def test_the_order_is_that_of_spark(spark: Any, kind: str) -> None:
    """Ranks over one column of each type, with nulls, in all four orders."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    arrow, values = SAMPLES[kind]
    chance = random.Random(3)
    rows = [*values, None, *chance.choices([*values, None], k=30)]
    column = pa.array(rows, arrow)
    frame = spark.createDataFrame(pa.table({"id": list(range(len(rows))), "x": column}))
    orders = {
        (descending, last): getattr(
            F.col("x"), f"{'desc' if descending else 'asc'}_nulls_{'last' if last else 'first'}"
        )()
        for descending in (False, True)
        for last in (False, True)
    }
    ranked = frame.select(
        "id",
        *(
            F.dense_rank().over(Window.partitionBy(F.lit(1)).orderBy(by)).alias(f"r{number}")
            for number, by in enumerate(orders.values())
        ),
    )
    found = {row.id: row for row in ranked.collect()}
    for number, (descending, last) in enumerate(orders):
        codes = codes_of(column, descending=descending, nulls_last=last)
        order = sorted_rows(codes)
        alike = [tuple(int(code[row]) for code in codes) for row in order.tolist()]
        distinct = {code: rank for rank, code in enumerate(dict.fromkeys(alike), start=1)}
        mine = {row: distinct[code] for row, code in zip(order.tolist(), alike, strict=True)}
        assert mine == {row: found[row][f"r{number}"] for row in mine}, (descending, last)


def test_order_codes_of_slices() -> None:
    """Columns of a sliced table begin behind the start of their buffers."""
    values = [decimal.Decimal(number) for number in (5, -3, 9, 0, 7)]
    column = pa.array(values, pa.decimal128(38, 0)).slice(1, 3)
    assert sorted_rows(codes_of(column)).tolist() == [0, 2, 1]
    texts = pa.array(["z", "b", "c", None, "a"]).slice(1, 4)
    assert sorted_rows(codes_of(texts)).tolist() == [2, 3, 0, 1]
