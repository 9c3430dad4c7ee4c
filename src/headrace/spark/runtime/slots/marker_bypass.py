"""Marker rows of resident slots, led around the Spark SQL of a chain.

Rows with a marker (`resident_stage`) must come out of a query whatever the user's filters and casts would make of them.
A rewritten query (`is_marker OR condition`) is another query: Spark joins its filters to one condition, evaluates the
second part of an `AND` where the first one is null, and computes no common subexpression in advance. So the query stays
as it is, and a marker never enters it:

    rows ─→ gate ─→ the user's Spark SQL ─→ merge ─→ rows
              └──────── marker ───────────────┘

1. *The gate* ends at a marker: `hasNext` is false. Spark SQL then passes everything on, as at the end of a partition.
2. *The merge* asks the Spark SQL for rows until it has none, and passes on the marker, which opens the gate again.
3. Iterators of projections, filters and generators ask their input again after it had no rows. One that does not, or
   that ended for a reason of its own, has left rows or a marker behind: the merge sees no marker and no end of the
   input, and fails. The warm-up of a slot passes two markers, so such a query gets no resident slots.
4. The gate reads the marker while Spark SQL may still hold the row before it. Spark's iterators reuse their rows, so no
   operator relies on a row after it has called `hasNext` or `next` of its input again.

Gate and merge are compiled by Spark on its executors, from source (`rows_through_code`).
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from headrace.spark.spark_internals import (
    frame_of_plan,
    frame_of_rdd,
    internal_rows,
    logical_plan,
    rows_through_code,
    shared_flag,
    shared_reference,
)
from headrace.spark.topology.nodes import MARKER_COLUMN

__all__ = ["ENDED_EARLY", "MarkerBypass"]

ENDED_EARLY = "Spark SQL ended before its input"

_GATE = """
public java.lang.Object generate(Object[] references) { return new HeadraceGate(references); }

final class HeadraceGate extends org.apache.spark.sql.execution.BufferedRowIterator {
  private final java.util.concurrent.atomic.AtomicReference marker;
  private final java.util.concurrent.atomic.AtomicBoolean ended;
  private final int at;
  private scala.collection.Iterator input;

  public HeadraceGate(Object[] references) {
    marker = (java.util.concurrent.atomic.AtomicReference) references[0];
    ended = (java.util.concurrent.atomic.AtomicBoolean) references[1];
    at = ((Integer) references[2]).intValue();
  }

  public void init(int index, scala.collection.Iterator[] inputs) { partitionIndex = index; input = inputs[0]; }

  protected void processNext() throws java.io.IOException {
    if (marker.get() != null) return;
    if (!input.hasNext()) { ended.set(true); return; }
    InternalRow row = (InternalRow) input.next();
    if (row.isNullAt(at)) append(row); else marker.set(row);
  }
}
"""

_MERGE = f"""
public java.lang.Object generate(Object[] references) {{ return new HeadraceMerge(references); }}

final class HeadraceMerge extends org.apache.spark.sql.execution.BufferedRowIterator {{
  private final java.util.concurrent.atomic.AtomicReference marker;
  private final java.util.concurrent.atomic.AtomicBoolean ended;
  private final int at;
  private final InternalRow noColumns;
  private final InternalRow noMarker = new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(1);
  private scala.collection.Iterator input;

  public HeadraceMerge(Object[] references) {{
    marker = (java.util.concurrent.atomic.AtomicReference) references[0];
    ended = (java.util.concurrent.atomic.AtomicBoolean) references[1];
    at = ((Integer) references[2]).intValue();
    noColumns = new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(((Integer) references[3]).intValue());
  }}

  public void init(int index, scala.collection.Iterator[] inputs) {{ partitionIndex = index; input = inputs[0]; }}

  protected void processNext() throws java.io.IOException {{
    if (input.hasNext()) {{
      append(new org.apache.spark.sql.catalyst.expressions.JoinedRow((InternalRow) input.next(), noMarker));
      return;
    }}
    InternalRow found = (InternalRow) marker.getAndSet(null);
    if (found != null) {{
      Object[] bytes = new Object[] {{ found.getBinary(at) }};
      append(new org.apache.spark.sql.catalyst.expressions.JoinedRow(
        noColumns, new org.apache.spark.sql.catalyst.expressions.GenericInternalRow(bytes)));
    }} else if (!ended.get()) {{
      throw new IllegalStateException("{ENDED_EARLY}");
    }}
  }}
}}
"""


class MarkerBypass:
    """The way of markers around one query. For one job: its tasks share nothing."""

    def __init__(self, fetched: DataFrame) -> None:
        """`fetched`: rows whose last column is `MARKER_COLUMN`."""
        assert fetched.columns[-1] == MARKER_COLUMN
        session = fetched.sparkSession
        self._shared = [shared_reference(session), shared_flag(session), len(fetched.columns) - 1]
        gated = rows_through_code(session, internal_rows(fetched), _GATE, self._shared)
        self.rows = frame_of_rdd(session, gated, StructType(fetched.schema.fields[:-1]))  # without markers

    def merged(self, queried: DataFrame, session: SparkSession) -> DataFrame:
        """Return the result of Spark SQL on `rows`, and all markers in their places.

        Args:
            queried: The result.
            session: To plan it in: one in which no query loses its input (`fetching_session`).
        """
        planned = frame_of_plan(session, logical_plan(queried))
        # Every column is null beside a marker.
        columns = [StructField(found.name, found.dataType, nullable=True) for found in planned.schema.fields]
        references = [*self._shared, len(columns)]
        merged = rows_through_code(session, internal_rows(planned), _MERGE, references)
        return frame_of_rdd(session, merged, StructType([*columns, StructField(MARKER_COLUMN, BinaryType())]))
