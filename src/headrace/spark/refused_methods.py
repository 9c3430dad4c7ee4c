"""Methods of PySpark that streams, groups and tables refuse: the code, the reason and an alternative for each."""

from __future__ import annotations

_SHUFFLE = {
    "orderBy": (
        "orderBy needs all rows in one place; a stream never has them all",
        "sort where you read: the topic's consumer or the table",
    ),
    "sort": (
        "sort needs all rows in one place; a stream never has them all",
        "sort where you read: the topic's consumer or the table",
    ),
    "limit": ("limit needs to see all rows; a stream has no last row", "filter with where, or limit where you read"),
    "offset": ("offset needs all rows in order; a stream has no first row", "filter with where"),
    "distinct": (
        "distinct needs every row that ever came",
        'group by the columns: groupBy("c").count() has one row per value',
    ),
    "dropDuplicates": (
        "dropDuplicates on a table would compare rows that replace each other",
        "drop duplicates before groupBy or the rank",
    ),
    "drop_duplicates": (
        "drop_duplicates on a table would compare rows that replace each other",
        "drop duplicates before groupBy or the rank",
    ),
    "rollup": (
        "rollup aggregates by several keys at once, in several places",
        "write one groupBy per level, each to a topic of its own",
    ),
    "cube": (
        "cube aggregates by several keys at once, in several places",
        "write one groupBy per combination, each to a topic of its own",
    ),
    "groupingSets": (
        "groupingSets aggregates by several keys at once, in several places",
        "write one groupBy per set, each to a topic of its own",
    ),
    "crossJoin": (
        "crossJoin pairs every row with every row; a stream never has them all",
        'join a plain DataFrame by a column: join(df, "c")',
    ),
    "intersect": ("intersect needs all rows of both sides", "group both sides by the same columns"),
    "intersectAll": ("intersectAll needs all rows of both sides", "group both sides by the same columns"),
    "subtract": ("subtract needs all rows of both sides", "group both sides by the same columns"),
    "exceptAll": ("exceptAll needs all rows of both sides", "group both sides by the same columns"),
    "repartition": (
        "repartition(..) on a stream comes in a later release",
        "groupBy repartitions by its keys through an internal topic",
    ),
    "repartitionByRange": (
        "repartitionByRange needs to see all rows",
        "groupBy repartitions by its keys through an internal topic",
    ),
    "sortWithinPartitions": (
        "sortWithinPartitions would reorder a micro-batch, not the stream",
        "rows keep the order of their offsets",
    ),
    "randomSplit": (
        "randomSplit answers differently each time it is run",
        "filter by a hash: where(F.hash('c') % 10 == 0)",
    ),
    "sample": ("sample answers differently each time it is run", "filter by a hash: where(F.hash('c') % 10 == 0)"),
}
_NOT_HERE = {
    "union": (
        "union matches columns by position, which hides mistakes when a schema moves",
        "unionByName does the same by name",
    ),
    "unionAll": (
        "unionAll matches columns by position, which hides mistakes when a schema moves",
        "unionByName does the same by name",
    ),
    "mapInPandas": ("mapInPandas on a stream comes in a later release", "use a pandas UDF in withColumn"),
    "mapInArrow": ("mapInArrow on a stream comes in a later release", "use an Arrow or pandas UDF in withColumn"),
    "collect": (
        "collect would wait for the end of a stream that has none",
        "write it with to_topic and read the topic, or use foreachBatch",
    ),
    "take": ("take would run the stream while it is being described", "write it with to_topic and read the topic"),
    "head": ("head would run the stream while it is being described", "write it with to_topic and read the topic"),
    "first": ("first would run the stream while it is being described", "write it with to_topic and read the topic"),
    "tail": ("tail would wait for the end of a stream that has none", "write it with to_topic and read the topic"),
    "count": ("count of a whole stream never ends", 'groupBy("c").count() keeps a count per value'),
    "show": ("show on a stream comes in a later release", "headrace console-consumer prints a topic's records"),
    "toPandas": (
        "toPandas would wait for the end of a stream that has none",
        "use foreachBatch, whose frames are finite",
    ),
    "toArrow": (
        "toArrow would wait for the end of a stream that has none",
        "use foreachBatch, whose frames are finite",
    ),
    "toLocalIterator": ("toLocalIterator would wait for the end of a stream that has none", "use foreachBatch"),
    "foreach": ("foreach runs a function per row in the executors", "use foreachBatch"),
    "foreachPartition": ("foreachPartition knows no micro-batch", "use foreachBatch"),
    "cache": (
        "cache would keep the first micro-batch and repeat it for ever",
        "leave it out: every micro-batch is read once",
    ),
    "persist": (
        "persist would keep the first micro-batch and repeat it for ever",
        "leave it out: every micro-batch is read once",
    ),
    "checkpoint": (
        "checkpoint would keep the first micro-batch and repeat it for ever",
        "leave it out: offsets and state are kept in Kafka",
    ),
    "localCheckpoint": ("localCheckpoint would keep the first micro-batch and repeat it for ever", "leave it out"),
    "coalesce": ("coalesce would mix the rows of tasks", "leave it out: a micro-batch has few, wide partitions"),
    "createOrReplaceTempView": ("a stream is no table of this session", "use selectExpr, or transform with a function"),
    "createTempView": ("a stream is no table of this session", "use selectExpr, or transform with a function"),
}
_PROPERTIES = {
    "write": ("write belongs to a finished DataFrame", "leave through to_topic or foreachBatch"),
    "writeTo": ("writeTo belongs to a finished DataFrame", "leave through to_topic or foreachBatch"),
    "writeStream": (
        "writeStream starts a Structured Streaming query; this stream runs by app.run()",
        "leave through to_topic or foreachBatch",
    ),
    "rdd": ("rdd would take the rows out of Spark SQL", "use a UDF, or foreachBatch"),
}
REFUSED_METHODS = {name: ("needs-shuffle", *words) for name, words in _SHUFFLE.items()} | {
    name: ("not-supported-here", *words) for name, words in _NOT_HERE.items()
}
REFUSED_PROPERTIES = {name: ("not-supported-here", *words) for name, words in _PROPERTIES.items()}

REFUSED_GROUPED_METHODS = {
    "pivot": (
        "needs-shuffle",
        "pivot makes columns from values that are not all known yet",
        "aggregate conditionally: F.count_if(F.col('c') == 'x') for each value",
    ),
} | {
    name: ("not-supported-here", f"{name} comes in a later release", "agg with count, sum, avg, min, max works now")
    for name in (
        "apply",
        "applyInArrow",
        "applyInPandas",
        "applyInPandasWithState",
        "cogroup",
    )
}
_SECOND_GROUPING = (
    "a second grouping would have to take back what a changed row had added",
    "write the first with to_topic and group where you read, or group the stream itself by the coarser columns",
)
_ONLY_GROW = (
    "files only grow, and an aggregate's rows replace each other",
    "to_delta, to_iceberg, to_postgres, to_sqlite or to_topic",
)
REFUSED_TABLE_METHODS = {"to_parquet": ("not-supported-here", *_ONLY_GROW)}
"""Methods that a stream has and the result of an aggregate has not."""

_UNITED = (
    "two tables may hold the same key, and then their rows would replace each other",
    "group them: groupBy(..).agg(..)",
)
_UNITED_LEAVE = (
    "unionByName",
    "join",
    "to_topic",
    "to_parquet",
    "to_delta",
    "to_iceberg",
    "to_postgres",
    "to_sqlite",
    "to_sink",
    "foreachBatch",
)
REFUSED_UNION_METHODS = dict.fromkeys(_UNITED_LEAVE, ("not-supported-here", *_UNITED))
"""Methods that a stream has and a union of tables has not."""

_RANK_FILTER = "keep the first rows of each key: where('rn <= 10') right behind the rank"
_RANKS_CHANGE = {
    name: (f"with each row that comes, the ranks of others change; {name} in front of the filter on the rank", fix)
    for name, fix in {
        "groupBy": _RANK_FILTER,
        "unionByName": "unite the streams before the rank",
        "join": "join before the rank",
        "dropna": "drop rows before the rank",
        "to_topic": _RANK_FILTER,
        "to_parquet": _RANK_FILTER,
        "to_delta": _RANK_FILTER,
        "to_iceberg": _RANK_FILTER,
        "to_postgres": _RANK_FILTER,
        "to_sqlite": _RANK_FILTER,
        "to_sink": _RANK_FILTER,
        "foreachBatch": _RANK_FILTER,
    }.items()
}
REFUSED_RANKED_METHODS = {name: ("needs-shuffle", *words) for name, words in _RANKS_CHANGE.items()}
"""Methods that a stream with a rank has only behind the filter on the rank."""

_RANKED_DROPPED = (
    "rows dropped behind a top-N would change which positions have a row",
    "filter before the rank; behind it, mark rows by a boolean column (withColumn)",
)
_RANKED_REPLACED = (
    "rows that leave the first ones are replaced or deleted, which Parquet files and foreachBatch cannot express",
    "write them with to_topic, to_delta, to_iceberg, to_postgres or to_sqlite",
)
_RANKED_TABLES = {
    "groupBy": (_SECOND_GROUPING[0], "write the rows with to_topic and group where you read"),
    "unionByName": ("two tables may hold the same key", "unite the streams before the rank"),
    "join": ("a join behind a top-N would change which positions have a row", "join before the rank"),
    "where": _RANKED_DROPPED,
    "filter": _RANKED_DROPPED,
    "dropna": _RANKED_DROPPED,
    "to_parquet": _RANKED_REPLACED,
    "foreachBatch": _RANKED_REPLACED,
}
REFUSED_RANKED_TABLE_METHODS = {name: ("not-supported-here", *words) for name, words in _RANKED_TABLES.items()}
"""Methods that a stream has and a top-N has not."""
