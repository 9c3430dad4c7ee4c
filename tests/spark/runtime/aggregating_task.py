"""One task of an aggregate: its store and its changelog, as the stateful step and the driver treat them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.spark.runtime.operators.keyed_operators import stateful_operator
from headrace.spark.runtime.operators.stateful_operator import StatefulOperator, StoreUpdate
from headrace.spark.runtime.operators.subscription_operator import SubscriptionOperator
from headrace.spark.runtime.stores.store import BatchKey, StoreIdentity, StorePosition, StoreReader, TaskStore
from headrace.spark.topology.nodes import TASK_COLUMN, Aggregate, Subscriptions, TableJoin


@dataclass
class AggregatingTask:
    """Runs micro-batches of rows `g0.., i0..`. Mutable; close its store."""

    directory: Path
    aggregate: Aggregate | TableJoin | Subscriptions
    store: TaskStore = field(init=False)
    changelog: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    committed: BatchKey | None = None
    batch: int = 0
    restores: int = 0
    newest: dict[tuple[Any, ...], dict[str, Any]] = field(default_factory=dict)
    results: pa.Table | None = None  # of the last micro-batch, if it committed and changed something
    all_results: list[pa.Table] = field(default_factory=list)  # the same, of an operator that yields several tables

    def __post_init__(self) -> None:
        self.store = self._opened()

    def _opened(self) -> TaskStore:
        [spec] = self._operator().stores
        identity = StoreIdentity(changelog_topic_id="t", schema_hash=spec.rows.hash, boot_id="b")
        return TaskStore(self.directory / f"store-{self.restores}", identity)

    def _operator(self) -> StatefulOperator:
        if isinstance(self.aggregate, Subscriptions):
            return SubscriptionOperator(self.aggregate)
        return stateful_operator(self.aggregate, self.aggregate.emits_changes)

    def run(self, rows: pa.Table, *, commits: bool = True, tables: int = 1) -> None:
        """Run a micro-batch; without `commits` it is prepared, and the next one undoes it."""
        self.batch += 1
        self.results, self.all_results = None, []
        key = BatchKey(incarnation="run", batch_id=self.batch)
        operator = self._operator().start()
        operator.begin(key)
        for piece in np.array_split(np.arange(rows.num_rows), tables):
            if len(piece):
                operator.on_rows(0, rows.slice(int(piece[0]), len(piece)))
        changes = operator.end(0)
        position = StorePosition(batch=key, input_offsets={}, changelog_offset=0)
        written: list[tuple[pa.Array, pa.Array]] = [(pa.array([], pa.binary()), pa.array([], pa.binary()))]
        if changes is None:
            self.store.merge(self.committed, position, written[0][0], lambda old: old).prepare(None)
        else:
            [change] = changes.stores
            if isinstance(change, StoreUpdate):

                def update(reader: StoreReader) -> Any:
                    writes = change.update(reader)
                    written.append((writes.keys, writes.values))
                    return writes

                self.store.update(self.committed, position, update).prepare(len(self.changelog))
            else:

                def merge(old: pa.Array) -> pa.Array:
                    written.append((change.keys, change.merge(old)))
                    return written[-1][1]

                self.store.merge(self.committed, position, change.keys, merge).prepare(len(self.changelog))
        if not commits:
            return
        self.committed = key
        keys, values = written[-1]
        assert keys.to_pylist() == sorted(set(keys.to_pylist()))
        self.changelog += zip(keys.to_pylist(), values.to_pylist(), strict=True)
        if changes is None:
            return
        if isinstance(self.aggregate, Subscriptions):
            self.all_results = list(changes.results())
        else:
            groups = [f"g{at}" for at in range(len(self.aggregate.group_columns))]
            self.results = changes.results()
            self.all_results = [self.results]
            for row in self.results.to_pylist():
                del row[TASK_COLUMN]
                self.newest[tuple(repr(row[name]) for name in groups)] = row

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

    def play(self, rows: pa.Table, cuts: Sequence[tuple[int, str]], *, tables: int = 1) -> list[dict[str, Any]]:
        """Run rows cut as told: (rows, "commit", "undo" or "restore"), and the rest; return the newest row per group.

        An undone micro-batch is run again, cut as the following ones are.
        """
        at = 0
        for size, outcome in [*cuts, (rows.num_rows, "commit")]:
            if outcome == "restore":
                self.restore()
            piece = rows.slice(at, size)
            self.run(piece, commits=outcome != "undo", tables=tables)
            at += piece.num_rows if outcome != "undo" else 0
        return list(self.newest.values())
