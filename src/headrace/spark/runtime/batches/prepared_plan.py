"""A Spark plan that is run for every micro-batch: kept as an RDD where that is right, planned anew where it is not.

Kept, because planning, the text of the plan for the UI and the look into every closure cost several times what the job
itself costs; a micro-batch then is one Spark job and nothing of Spark SQL, and the broadcasts of a join are built once
for each reading of a side. Such an RDD carries the session's settings to the tasks. Planned anew, when it tells the
time or draws lots: what Spark has planned repeats `current_timestamp()`, `uuid()` and `rand()` for ever.

A plan whose rows may all be dropped before they are read is planned in a copy of the session with settings of its own:
one with a join, one with a filter that Spark knows to be false, or will know one day (`current_date() < ..`). Spark
leaves out what joins with nothing (an empty table, or a filter that leaves none of its rows) and what passes no
filter, and with it the stage that fetches: no task would ever move on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.analysis.static_join import StaticDataFrame
from headrace.spark.spark_internals import (
    analysed,
    class_of,
    clone_session,
    contains_current_time,
    frame_of_plan,
    json_rows,
    logical_plan,
    optimised,
    run_plan,
    walk,
)
from headrace.spark.topology.nodes import CompiledSubtopology

__all__ = ["PreparedPlan", "fetching_session", "static_dataframes"]

_KEEPS_FETCHING = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation,"
    "org.apache.spark.sql.catalyst.optimizer.PruneFilters",
}


def static_dataframes(subtopology: CompiledSubtopology) -> tuple[StaticDataFrame, ...]:
    """Every DataFrame that a subtopology joins."""
    calls = (call for branch in subtopology.branches for call in (*branch.before, *branch.between, *branch.after))
    return tuple(argument for call in calls for argument in call.args if isinstance(argument, StaticDataFrame))


class PreparedPlan:
    """A plan that can be run again and again.

    The analyser gives `uuid()` and `rand()` their seeds, so a plan with such functions is built anew (70 ms). One that
    tells the time starts from its logical plan (30 ms), where it is still open. Any other is planned once.
    """

    def __init__(
        self,
        build: Callable[[], DataFrame],
        sides: Sequence[StaticDataFrame] = (),
        *,
        session: SparkSession | None = None,
    ) -> None:
        """`session`: to plan in, one in which no plan loses its fetch stage; None: the one of `build`'s DataFrame."""
        self._build, self._sides = build, tuple(sides)
        self._read = [side.hold() for side in self._sides]
        first = self._build()
        self._keeps_fetching = (
            session is not None or bool(self._sides) or contains_current_time(first) or _loses_a_stage(first)
        )
        if session is None:
            session = fetching_session(first.sparkSession) if self._keeps_fetching else first.sparkSession
        self._session = session
        self._look(first)

    def _look(self, first: DataFrame) -> None:
        # Three kinds: kept as planned, planned anew from its logical plan (tells the time), built anew (has seeds).
        self._is_deterministic = bool(analysed(first).deterministic())
        self._may_be_kept = self._is_deterministic and not contains_current_time(first)
        self._logical = logical_plan(first)
        self._kept: DataFrame | None = None
        self._rows: Any = None

    def dataframe(self) -> DataFrame:
        """The plan for one micro-batch."""
        self._rebuild_if_refreshed()
        return self._planned()

    def _planned(self) -> DataFrame:
        if not self._is_deterministic and not self._keeps_fetching:
            return self._build()
        # In a session of its own the plan has to be made from a logical plan, since a DataFrame belongs to the session
        # that built it.
        logical = self._logical if self._is_deterministic else logical_plan(self._build())
        return frame_of_plan(self._session, logical)

    def collect(self) -> list[dict[str, Any]]:
        """The rows, for there are few of them: as one JSON text over py4j, where each call is a round trip.

        `DataFrame.collect` and `RDD.collect` open a socket for each call, and where that is one of the file system the
        JVM remembers its name until it ends (File.deleteOnExit): 250 bytes for each micro-batch, for ever.
        """
        # `_rows` is a Java RDD over the planned query; collecting it again starts a job without planning.
        frame = self.kept()
        if self._rows is None or not self._may_be_kept:
            self._rows = json_rows(frame)
        found: list[dict[str, Any]] = json.loads(self._rows.collect().toString())  # a Java list writes "[.., ..]"
        return found

    def run(self) -> None:
        """Run it for its errors only."""
        run_plan(self.kept())

    def kept(self) -> DataFrame:
        """The plan for one micro-batch, planned before where that is right."""
        self._rebuild_if_refreshed()
        if not self._may_be_kept:
            return self._planned()
        if self._kept is None:
            self._kept = self._planned()
        return self._kept

    def _rebuild_if_refreshed(self) -> None:
        """Build the plan again if a static side was read again, because its rows are part of the plan."""
        read = [side.hold() for side in self._sides]
        if read != self._read:
            self._look(self._build())
            self._read = read


def _loses_a_stage(dataframe: DataFrame) -> bool:
    """Whether Spark would leave out a Python stage, because no row can come through."""
    before, after = (
        sum(class_of(node) == "MapInArrow" for node in walk(plan))
        for plan in (analysed(dataframe), optimised(dataframe))
    )
    return after < before


def fetching_session(session: SparkSession, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A copy of the session in which no plan loses its fetch stage, with `settings` on top."""
    copied = clone_session(session)
    for name, value in (*_KEEPS_FETCHING.items(), *(settings or {}).items()):
        # The user may have excluded rules of the optimiser as well: ours are added to them.
        given = str(copied.conf.get(name, "")) if name.endswith("excludedRules") else ""
        copied.conf.set(name, f"{given},{value}" if given else value)
    return copied
