"""Static side of a join: a plain DataFrame that every worker holds as a whole, joined to the stream.

The driver reads it once at the start, and again when it is older than `headrace.join.refresh.ms`; micro-batches join
with the held rows, so nothing is shuffled and no micro-batch reads a table. Reading it outside of micro-batches is
required: an unreachable database would otherwise look like records that Spark SQL cannot process.

Before `hold()` the plan contains the user's own DataFrame (templates, `verify`). The held copy keeps the DataFrame's
columns with their ids, so that conditions written with `df["code"]` stay valid.
"""

from __future__ import annotations

import logging
import threading
import time

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from headrace.errors import TopologyError
from headrace.spark.spark_internals import (
    analysed,
    broadcast_threshold_bytes,
    class_of,
    collect_as_java_list,
    estimated_bytes,
    frame_of_plan,
    is_classic,
    local_relation,
    sequence,
)
from headrace.spark.unsupported import refusal

__all__ = ["NARROW_JOINS", "WIDE_JOINS", "StaticDataFrame", "checked_join"]

log = logging.getLogger("headrace.spark")

_UNKNOWN_BYTES = 2**62  # Spark takes what it knows nothing about for larger than anything
_SMALLER = (
    "take the rows and columns you need first (where, select), or write F.broadcast(df) when it fits into the memory "
    "of the driver and of every worker; two large sides are joined where you read"
)


NARROW_JOINS = {"inner": "inner", "left": "left", "leftouter": "left", "leftsemi": "left_semi", "semi": "left_semi"}
NARROW_JOINS |= {"leftanti": "left_anti", "anti": "left_anti"}
WIDE_JOINS = ("right", "rightouter", "outer", "full", "fullouter")


def checked_join(other: object, on: object, how: str | None, where: str) -> str:
    """Return the normalised join type. Raises TopologyError for joins that need rows of other tasks."""
    if not isinstance(other, DataFrame) or not is_classic(other):
        raise refusal(
            "not-supported-here",
            f"join takes a plain DataFrame, not a {type(other).__name__}; joins of streams come in a later release",
            "spark.read.., spark.table(..) or spark.createDataFrame(..) give one",
            where,
        )
    if other.isStreaming:
        raise refusal(
            "not-supported-here",
            "this DataFrame is a Structured Streaming query; it never ends, so it cannot lie in every worker",
            "read the same data with spark.read",
            where,
        )
    kind = NARROW_JOINS.get(folded := str(how or "inner").lower().replace("_", ""))
    if folded in WIDE_JOINS:
        raise refusal(
            "needs-shuffle",
            f"a {how} join has rows for whatever no row of the stream ever met, and a stream never ends",
            'how="left" keeps every row of the stream; what was never met is found where you read',
            where,
        )
    if kind is None or on is None:
        raise refusal(
            "not-supported-here",
            "a join without a condition makes as many of each row as the DataFrame has"
            if on is None
            else f"how={how!r} is no join of a stream",
            'join(df, "column"), or join(df, condition); inner, left, left_semi, left_anti',
            where,
        )
    return kind


class StaticDataFrame:
    """One DataFrame of the user in one join, shared by the micro-batches of all subtopologies that join it."""

    def __init__(self, dataframe: DataFrame, *, refresh_ms: int, where: str) -> None:
        """Raises TopologyError("needs-shuffle") if Spark already estimates the DataFrame as too large."""
        self.where = where
        self._frame, self._refresh_ms = dataframe, refresh_ms
        self._is_hinted = class_of(analysed(dataframe)) == "ResolvedHint"
        self._held: DataFrame | None = None
        self._version = 0
        self._looked_at = 0.0
        self._lock = threading.Lock()
        if not self._is_hinted:
            expected = estimated_bytes(dataframe)
            self._check_size(expected if expected < _UNKNOWN_BYTES else 0)

    def dataframe(self) -> DataFrame:
        """The right side of the join: the held rows, or the user's DataFrame before the first reading."""
        held = self._held
        return F.broadcast(held if held is not None else self._frame)

    def hold(self) -> int:
        """Read the DataFrame if it was never read, or if the held rows are older than the refresh interval.

        Returns:
            A number that increases with each reading.

        Raises:
            TopologyError: if the first reading fails or is too large. Later failures keep the held rows and log a
            warning.
        """
        with self._lock:
            now = time.monotonic()
            if self._held is None:
                self._held = self._read()
            elif (now - self._looked_at) * 1000 < self._refresh_ms:
                return self._version
            else:
                try:
                    self._held = self._read()
                except TopologyError as error:
                    log.warning("%s; micro-batches go on with what was read before", error.message)
                    self._looked_at = now
                    return self._version
            self._looked_at = now
            self._version += 1
            return self._version

    def _read(self) -> DataFrame:
        most = None if self._is_hinted else max(0, self._threshold_bytes())
        session = self._frame.sparkSession
        try:
            plan = analysed(self._frame)
            plan.refresh()  # files that came into a directory since
            # Spark's own estimate of a row (`EstimationUtils.getSizePerRow`): 8 bytes of overhead and the default size
            # of each column.
            row_bytes = 8 + sum(int(one.dataType().defaultSize()) for one in sequence(plan.output()))
            rows = frame_of_plan(session, plan)  # one DataFrame read twice has the files of the first time
            # One row more than allowed: enough to know that it is too large, without reading the rest.
            found = collect_as_java_list(rows if most is None else rows.limit(most // row_bytes + 1))
        except (PySparkException, Py4JError) as error:
            sentence = str(error).strip().splitlines()[0]
            raise refusal(
                "refused-by-spark",
                f"the DataFrame of this join could not be read: {sentence}",
                "see that df.collect() works in this session",
                self.where,
            ) from None
        if most is not None:
            self._check_size(len(found) * row_bytes)
        # The same output attributes, ids included: conditions such as `stream["code"] == df["code"]` refer to them.
        return frame_of_plan(session, local_relation(session, plan.output(), found))

    def _threshold_bytes(self) -> int:
        return broadcast_threshold_bytes(self._frame.sparkSession)

    def _check_size(self, expected: int) -> None:
        most = self._threshold_bytes()
        if expected > max(0, most):
            raise refusal(
                "needs-shuffle",
                f"the DataFrame of this join takes about {expected:,} bytes by Spark's estimate, and without a "
                f"shuffle it lies whole in every worker: spark.sql.autoBroadcastJoinThreshold is {most:,}",
                _SMALLER,
                self.where,
                bytes=expected,
            )
