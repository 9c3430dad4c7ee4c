"""Access to internals of Spark's JVM over py4j: everything that Headrace uses and PySpark has no public API for.

All private attributes (`_jvm`, `_jdf`, `_jsparkSession` ..) and all internal Java classes are reached here, so that a
new Spark release is checked in one place. `tests/spark/test_spark_internals.py` has a test for each function and runs
with every supported release. Differences between releases are handled here.

Classic sessions only: Spark Connect has no JVM in this process (`is_classic`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from py4j.java_gateway import JavaGateway, JavaObject, is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = [
    "activate",
    "analysed",
    "broadcast_threshold_bytes",
    "catalyst_expressions",
    "class_of",
    "clone_session",
    "collect_arrow",
    "collect_as_java_list",
    "collect_rows",
    "column_of",
    "column_text",
    "compile_script",
    "contains_current_time",
    "empty_option",
    "empty_rdd",
    "estimated_bytes",
    "expression_id",
    "frame_of_plan",
    "frame_of_rdd",
    "frame_of_rows",
    "has_user_function",
    "internal_rows",
    "interval_microseconds",
    "interval_parts",
    "is_classic",
    "is_instance",
    "is_stopped",
    "java_list",
    "json_rows",
    "jvm_process",
    "local_relation",
    "logical_plan",
    "logical_plans",
    "not_null_columns",
    "optimised",
    "parse_expression",
    "private_field",
    "query_execution",
    "rows_through_code",
    "run_plan",
    "scala_sequence",
    "sequence",
    "shared_flag",
    "shared_reference",
    "spread_of_offsets",
    "task_context",
    "unresolved_column",
    "usable_processors",
    "walk",
    "walk_of_stream",
    "with_children",
]

_attempt_ids = itertools.count(1 << 40)  # of task attempts that Spark's scheduler does not know


# -- sessions and the JVM ---------------------------------------------------------------------------------------------


def is_classic(one: object) -> bool:
    """Whether a session or a DataFrame belongs to a JVM in this process, and not to Spark Connect."""
    return hasattr(one, "_jsparkSession") or hasattr(one, "_jdf")


def jvm_process(session: SparkSession) -> tuple[int, subprocess.Popen[bytes] | None]:
    """Return the JVM's pid, and its process if Python started it (not under spark-submit)."""
    context: SparkContext = session.sparkContext
    return int(context._jvm.java.lang.ProcessHandle.current().pid()), getattr(context._gateway, "proc", None)


def is_stopped(session: SparkSession) -> bool:
    """Whether the session's context has stopped: by the program, or by a cluster that ended the Spark application."""
    context: SparkContext = session.sparkContext
    return context._jsc is None or bool(context._jsc.sc().isStopped())


def usable_processors(session: SparkSession) -> int:
    """Return the processors that the JVM may use: in a container those of its limit, which Python does not see."""
    return int(_jvm(session).java.lang.Runtime.getRuntime().availableProcessors())


def clone_session(session: SparkSession) -> SparkSession:
    """Return a copy of the session, with settings of its own and the same temporary views and functions.

    `SparkSession.newSession` would have neither views nor functions of the user.
    """
    from pyspark.sql import SparkSession

    return SparkSession(session.sparkContext, _jsession(session).cloneSession())


def spread_of_offsets(session: SparkSession) -> int:
    """Return by how much the offsets of the session's time zone from UTC differ, over all times, in microseconds."""
    zone = str(session.conf.get("spark.sql.session.timeZone"))
    rules = _jvm(session).org.apache.spark.sql.catalyst.util.DateTimeUtils.getZoneId(zone).getRules()
    # Two instants that the calendar puts n days apart are as far from n times 24 hours as their offsets differ.
    changes = [*rules.getTransitions(), *rules.getTransitionRules()]
    offsets = [one for change in changes for one in (change.getOffsetBefore(), change.getOffsetAfter())]
    seconds = [int(offset.getTotalSeconds()) for offset in offsets]
    return (max(seconds) - min(seconds)) * 1_000_000 if seconds else 0


def activate(session: SparkSession) -> None:
    """Make `session` the active one of the calling thread: operators take the thread's session when they are made."""
    _jvm(session).org.apache.spark.sql.classic.SparkSession.setActiveSession(_jsession(session))


def broadcast_threshold_bytes(session: SparkSession) -> int:
    """Return `spark.sql.autoBroadcastJoinThreshold` in bytes, whatever unit it was given in."""
    return int(_jsession(session).sessionState().conf().autoBroadcastJoinThreshold())


def private_field(session: SparkSession, class_name: str, name: str) -> JavaObject:
    """Return a private field of a class below `org.apache.spark`, as a `java.lang.reflect.Field`.

    Reflection, because a method call by py4j lists all methods of the class first. That fails for classes with
    signatures of optional libraries which PySpark does not ship (SparkEnv).
    """
    found = _jvm(session).java.lang.Class.forName(f"org.apache.spark.{class_name}").getDeclaredField(name)
    found.setAccessible(True)
    return found


def compile_script(session: SparkSession, source: str, parameters: Mapping[str, str]) -> Callable[..., str]:
    """Compile Java statements by Janino, the compiler of Spark's generated code. Compiled scripts are cached.

    Args:
        session: The session whose JVM runs the script.
        source: Statements that return a String.
        parameters: Name → Java class of each parameter.

    Returns:
        A function of the parameters.
    """
    return _compiled(session.sparkContext._gateway, source, tuple(parameters.items()))


@functools.lru_cache(maxsize=4)
def _compiled(gateway: JavaGateway, source: str, parameters: tuple[tuple[str, str], ...]) -> Callable[..., str]:
    jvm = gateway.jvm
    # The class loader of Spark, because Janino has to resolve Spark's classes in the script's parameters.
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    names, types = (gateway.new_array(kind, len(parameters)) for kind in (jvm.String, jvm.Class))
    for at, (name, kind) in enumerate(parameters):
        names[at], types[at] = name, jvm.Class.forName(kind, True, loader)
    script = jvm.org.codehaus.janino.ScriptEvaluator()
    script.setParentClassLoader(loader)
    script.setReturnType(jvm.Class.forName("java.lang.String"))
    script.setParameters(names, types)
    script.cook(source)

    def call(*values: object) -> str:
        given = gateway.new_array(jvm.Object, len(parameters))
        for at, value in enumerate(values):
            given[at] = value
        return str(script.evaluate(given))

    return call


@contextlib.contextmanager
def task_context(session: SparkSession) -> Iterator[JavaObject]:
    """Set a task context for the calling thread: operators allocate memory and stop Python workers by it."""
    jvm = _jvm(session)
    companion = getattr(getattr(jvm.org.apache.spark, "TaskContext$"), "MODULE$")
    task = companion.empty()
    memory = jvm.org.apache.spark.memory.TaskMemoryManager(_memory_manager(session), next(_attempt_ids))
    # `TaskContext.empty()` has no memory manager, which operators with a hash table or a sort need.
    private_field(session, "TaskContextImpl", "taskMemoryManager").set(task, memory)
    companion.setTaskContext(task)
    try:
        yield task
    finally:
        companion.unset()  # else Spark takes this thread for one of an executor
        task.markTaskCompleted(empty_option(session))
        memory.cleanUpAllAllocatedMemory()


def _memory_manager(session: SparkSession) -> JavaObject:
    environment = private_field(session, "SparkEnv$", "env").get(
        private_field(session, "SparkEnv$", "MODULE$").get(None)
    )
    for name in ("_memoryManager", "memoryManager"):  # Spark 4 initialises it late, in a field with another name
        with contextlib.suppress(Py4JJavaError):
            return private_field(session, "SparkEnv", name).get(environment)
    raise LookupError("SparkEnv has no memory manager")


def _jvm(session: SparkSession) -> JavaObject:
    return session.sparkContext._jvm


def _jsession(session: SparkSession) -> JavaObject:
    return session._jsparkSession


# -- plans ------------------------------------------------------------------------------------------------------------


def query_execution(dataframe: DataFrame) -> JavaObject:
    """Return Spark's `QueryExecution` of `dataframe`, which holds its plans of all phases."""
    return dataframe._jdf.queryExecution()


def logical_plan(dataframe: DataFrame) -> JavaObject:
    """Return the logical plan of `dataframe` as it was built, with the time functions still open."""
    return query_execution(dataframe).logical()


def analysed(dataframe: DataFrame) -> JavaObject:
    """Return the analysed logical plan of `dataframe`, a JVM object."""
    return query_execution(dataframe).analyzed()


def optimised(dataframe: DataFrame) -> JavaObject:
    """Return the optimised logical plan of `dataframe`."""
    return query_execution(dataframe).optimizedPlan()


def not_null_columns(dataframe: DataFrame) -> set[str]:
    """Return the columns of which Spark knows, by filters in front of them, that no value is null."""
    plan = analysed(dataframe)
    names = {expression_id(column): str(column.name()) for column in sequence(plan.output())}
    known = [one.child() for one in sequence(plan.constraints().toSeq()) if class_of(one) == "IsNotNull"]
    columns = [one for one in known if class_of(one) == "AttributeReference"]
    return {names[expression_id(one)] for one in columns if expression_id(one) in names}


def estimated_bytes(dataframe: DataFrame) -> int:
    """Return Spark's estimate of the size of the result. Unknown sizes are estimated as huge."""
    return int(str(optimised(dataframe).stats().sizeInBytes()))  # a scala.math.BigInt


def contains_current_time(dataframe: DataFrame) -> bool:
    """Whether `current_timestamp()`, `current_date()` or a similar function occurs in the analysed plan."""
    # Spark marks these functions by a tree pattern bit, so no class names are listed here.
    current = _jvm(dataframe.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE()
    return bool(analysed(dataframe).containsPattern(current))


def has_user_function(session: SparkSession, expressions: Iterable[JavaObject]) -> bool:
    """Whether a function of the user stands in one of `expressions`: their SQL text does not contain what it does.

    Spark marks those of Python and Scala by tree pattern bits, which two calls read. Hive's have none: in a session
    with Hive each part of an expression is looked at, one call for each.
    """
    patterns = _jvm(session).org.apache.spark.sql.catalyst.trees.TreePattern
    expressions = list(expressions)
    if any(one.containsPattern(kind) for kind in (patterns.PYTHON_UDF(), patterns.SCALA_UDF()) for one in expressions):
        return True
    if session.conf.get("spark.sql.catalogImplementation", "in-memory") != "hive":
        return False
    return any(class_of(part) in ("HiveSimpleUDF", "HiveGenericUDF") for one in expressions for part in walk(one))


def frame_of_plan(session: SparkSession, plan: JavaObject) -> DataFrame:
    """Return a DataFrame of a logical plan, planned again in `session`."""
    from pyspark.sql import DataFrame

    return DataFrame(_jvm(session).org.apache.spark.sql.classic.Dataset.ofRows(_jsession(session), plan), session)


def local_relation(session: SparkSession, output: JavaObject, rows: JavaObject) -> JavaObject:
    """Return a logical plan that holds `rows` (Java Rows), with the columns `output` and their expression ids."""
    catalyst = _jvm(session).org.apache.spark.sql.catalyst.plans.logical
    return catalyst.LocalRelation.fromExternalRows(output, scala_sequence(session, rows))


def run_plan(dataframe: DataFrame) -> None:
    """Run a plan for its side effects and errors. `DataFrame.count` would let the optimiser drop its columns."""
    # `toRdd` runs the physical plan as it is, outside of an SQL execution.
    query_execution(dataframe).toRdd().count()


def json_rows(dataframe: DataFrame) -> JavaObject:
    """Return a Java RDD of the rows as JSON texts. It can be collected again and again without another planning."""
    return dataframe._jdf.toJSON().javaRDD()


def collect_as_java_list(dataframe: DataFrame) -> JavaObject:
    """Run `dataframe` and keep its rows in the driver's JVM, as a Java list of public Rows."""
    return dataframe._jdf.collectAsList()


def java_list(session: SparkSession) -> JavaObject:
    """Return an empty Java list."""
    return _jvm(session).java.util.ArrayList()


def collect_arrow(dataframe: DataFrame) -> list[pa.RecordBatch]:
    """Return the rows of `dataframe` as Arrow, with timestamps as `mapInArrow` gets them.

    A plan of filters and projections over rows in the driver runs there, without a Spark job: 37 ms of CPU instead of
    80 for two rows.
    """
    session, execution = dataframe.sparkSession, query_execution(dataframe)
    if _ROW_BY_ROW.fullmatch(str(execution.executedPlan().toString())) is None:
        rows = execution.executedPlan().executeCollect()
        wrapped = _jvm(session).scala.collection.immutable.ArraySeq.unsafeWrapArray(rows)
        return _arrow_batches(dataframe, wrapped.iterator())
    rdd = execution.toRdd()
    with task_context(session) as task:
        # As `SQLExecution.withSQLConfPropagated`: expressions look up settings in the properties of their task.
        settings = _jsession(session).sessionState().conf().getAllConfs()
        task.getLocalProperties().putAll(_jvm(session).scala.jdk.javaapi.CollectionConverters.asJava(settings))
        return [
            batch
            for partition in rdd.partitions()
            for batch in _arrow_batches(dataframe, rdd.iterator(partition, task))
        ]


# The text of a physical plan with these operators only, as `executedPlan` prints it.
_ROW_BY_ROW = re.compile(r"([ :+|-]*(\*\(\d+\) )?(Project|Filter|LocalTableScan)\b[^\n]*\n)+\s*")


def _arrow_batches(dataframe: DataFrame, rows: JavaObject) -> list[pa.RecordBatch]:
    """Return a Scala iterator of internal rows as Arrow."""
    session = dataframe.sparkSession
    zone = str(session.conf.get("spark.sql.session.timeZone"))
    converters = getattr(getattr(_jvm(session).org.apache.spark.sql.execution.arrow, "ArrowConverters$"), "MODULE$")
    # Batches of any size; duplicate names in structs are no error; types with 32-bit offsets.
    batches = converters.toBatchWithSchemaIterator(rows, dataframe._jdf.schema(), 0, -1, zone, False, False)
    found: list[pa.RecordBatch] = []
    while batches.hasNext():
        found.extend(pa.ipc.open_stream(batches.next()))
    return found


def collect_rows(dataframe: DataFrame) -> tuple[JavaObject, int, JavaObject]:
    """Run `dataframe` as one job and keep its rows in the driver's JVM: (Java list, number of rows, schema)."""
    jvm = _jvm(dataframe.sparkSession)
    # `executeCollect` returns internal rows and no converted ones. `unsafeWrapArray` gives them to the collection
    # without a copy.
    array = query_execution(dataframe).executedPlan().executeCollect()
    wrapped = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(array)
    return jvm.scala.jdk.javaapi.CollectionConverters.asJava(wrapped), len(array), dataframe._jdf.schema()


def frame_of_rows(session: SparkSession, rows: JavaObject, schema: JavaObject, partitions: int) -> DataFrame:
    """Return a DataFrame of internal rows (see `collect_rows`), in so many partitions."""
    from pyspark.sql import DataFrame

    context: SparkContext = session.sparkContext
    rdd = context._jsc.parallelize(rows, partitions).rdd()
    return DataFrame(_jsession(session).internalCreateDataFrame(rdd, schema, False), session)


def internal_rows(dataframe: DataFrame) -> JavaObject:
    """Return the Java RDD of internal rows that `dataframe` is planned as."""
    return query_execution(dataframe).toRdd()


def frame_of_rdd(session: SparkSession, rdd: JavaObject, schema: StructType) -> DataFrame:
    """Return a DataFrame of a Java RDD of internal rows (see `internal_rows`)."""
    from pyspark.sql import DataFrame

    java_schema = _jvm(session).org.apache.spark.sql.types.DataType.fromJson(schema.json())
    return DataFrame(_jsession(session).internalCreateDataFrame(rdd, java_schema, False), session)


def empty_rdd(session: SparkSession) -> JavaObject:
    """Return a Java RDD of internal rows without any."""
    return session.sparkContext._jsc.emptyRDD().rdd()


def rows_through_code(
    session: SparkSession, rdd: JavaObject, source: str, references: Sequence[JavaObject]
) -> JavaObject:
    """Return an RDD whose partitions pass through an iterator in Java, compiled where its tasks run.

    The classes that Spark's generated code takes to executors, as source text, take ours: a class compiled in the
    driver would be unknown to the deserialiser of a task.

    Args:
        session: The session of `rdd`.
        rdd: A Java RDD of internal rows.
        source: A method `generate(Object[])` that returns a `BufferedRowIterator`, and its class.
        references: What `generate` receives. Objects that two RDDs of one lineage share are shared in each task, and
            by no two tasks, because a task deserialises its lineage as one graph.
    """
    jvm = _jvm(session)
    execution, catalyst = jvm.org.apache.spark.sql.execution, jvm.org.apache.spark.sql.catalyst
    no_comments = getattr(getattr(jvm.scala.collection.immutable, "Map$"), "MODULE$").empty()
    code = catalyst.expressions.codegen.CodeAndComment(source, no_comments)
    given = session.sparkContext._gateway.new_array(jvm.Object, len(references))
    for at, reference in enumerate(references):
        given[at] = reference
    metric = execution.metric.SQLMetrics.createMetric(session.sparkContext._jsc.sc(), "headrace")
    try:
        factory = execution.WholeStageCodegenEvaluatorFactory(jvm.scala.util.Right(code), metric, given)
    except Py4JError:  # releases that never broadcast generated code
        factory = execution.WholeStageCodegenEvaluatorFactory(code, metric, given)
    row = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.InternalRow")
    return rdd.mapPartitionsWithEvaluator(factory, jvm.scala.reflect.ClassTag.apply(row))


def shared_reference(session: SparkSession) -> JavaObject:
    """Return an empty `AtomicReference`, for `rows_through_code`."""
    return _jvm(session).java.util.concurrent.atomic.AtomicReference()


def shared_flag(session: SparkSession) -> JavaObject:
    """Return an `AtomicBoolean` that is false, for `rows_through_code`."""
    return _jvm(session).java.util.concurrent.atomic.AtomicBoolean()


def sequence(scala: JavaObject) -> list[JavaObject]:
    """Return a Scala Seq as a list."""
    return [scala.apply(index) for index in range(scala.size())]


def scala_sequence(session: SparkSession, items: JavaObject | Sequence[object]) -> JavaObject:
    """Return a list, of Python or of Java, as a Scala Seq."""
    return _jvm(session).PythonUtils.toSeq(items)


def empty_option(session: SparkSession) -> JavaObject:
    """Return Scala's None."""
    return _jvm(session).scala.Option.empty()


def walk(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield `plan` and all nodes below it, parents first."""
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        pending.extend(reversed(sequence(node.children())))


def walk_of_stream(plan: JavaObject) -> Iterator[JavaObject]:
    """Yield nodes like `walk`, but follow only the left side of joins: the stream is always on the left."""
    pending = [plan]
    while pending:
        node = pending.pop()
        yield node
        # The right side of a join is a static DataFrame, whose nodes (an Exchange, a Sort) say nothing about the
        # stream.
        pending.extend([node.left()] if class_of(node) == "Join" else reversed(sequence(node.children())))


def class_of(node: JavaObject) -> str:
    """Return the simple class name of a JVM object."""
    return str(node.getClass().getSimpleName())


# -- expressions ------------------------------------------------------------------------------------------------------


def catalyst_expressions(session: SparkSession) -> JavaObject:
    """Return the package `org.apache.spark.sql.catalyst.expressions`, whose classes can be called to make objects."""
    return _jvm(session).org.apache.spark.sql.catalyst.expressions


def logical_plans(session: SparkSession) -> JavaObject:
    """Return the package `org.apache.spark.sql.catalyst.plans.logical`, whose classes can be called to make nodes."""
    return _jvm(session).org.apache.spark.sql.catalyst.plans.logical


def parse_expression(session: SparkSession, text: str) -> JavaObject:
    """Parse SQL text into an unresolved expression."""
    return _jsession(session).sessionState().sqlParser().parseExpression(text)


def unresolved_column(session: SparkSession, name: str) -> JavaObject:
    """Return an expression for the column `name`, whatever characters the name has."""
    return _jvm(session).org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute.quoted(name)


def with_children(session: SparkSession, expression: JavaObject, children: Sequence[JavaObject]) -> JavaObject:
    """Return `expression` with other children."""
    return expression.withNewChildren(scala_sequence(session, children))


def interval_microseconds(session: SparkSession, text: str) -> int:
    """Return the length of an interval such as "10 minutes" as `withWatermark` has it: a month is 31 days."""
    jvm = _jvm(session)
    intervals = jvm.org.apache.spark.sql.catalyst.util.IntervalUtils
    return int(
        intervals.getDuration(intervals.fromIntervalString(text), jvm.java.util.concurrent.TimeUnit.MICROSECONDS, 31)
    )


def interval_parts(session: SparkSession, text: str) -> tuple[int, int, int] | None:
    """Return (months, days, microseconds) of an interval such as "1 day 2 hours"; None if the text is none."""
    from py4j.java_gateway import get_field
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        found = _jvm(session).org.apache.spark.sql.catalyst.util.IntervalUtils.fromIntervalString(text)
    except (Py4JJavaError, PySparkException):
        return None
    return int(get_field(found, "months")), int(get_field(found, "days")), int(get_field(found, "microseconds"))


def expression_id(attribute: JavaObject) -> int:
    """Return the expression id by which Spark identifies an attribute."""
    return int(attribute.exprId().id())


def is_instance(session: SparkSession, one: JavaObject, class_name: str) -> bool:
    """Whether a JVM object is an instance of a class or trait, given by its full name."""
    return bool(is_instance_of(session.sparkContext._gateway, one, class_name))


def explicit_settings(session: SparkSession) -> str:
    """Return the settings that the session was given, as "name -> value" in one text: a single call of the JVM."""
    return str(session._jsparkSession.sessionState().conf().getAllConfs().toString())


def column_of(session: SparkSession, expression: JavaObject) -> Column:
    """Return a PySpark column of an expression."""
    from pyspark.sql.classic.column import Column

    return Column(_jvm(session).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def column_text(column: Column) -> str:
    """Return the text of a column's expression, such as "unresolvedstar()" for `F.col("*")`."""
    return str(column._jc.toString())
