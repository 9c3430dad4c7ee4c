"""The Spark data source `headrace`: `spark.read.format("headrace")` for Spark jobs that are no `StreamsApp`.

`options` reads Spark's option names, `offset_ranges` plans ranges (both pure), `log_positions` looks up offsets in the
cluster, `range_reader` reads a range in an executor, and `source` is the class that Spark registers.
"""
