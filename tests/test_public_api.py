"""Misuse of the public API: every error a HeadraceError with code, cause and fix in the text of its traceback.

The tables are made from the API itself: each public method of each public class is called with a name that it does not
have and, for each parameter, with a value of a wrong type. No Spark session is started here.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from types import FunctionType
from typing import Any, TypeVar

import pytest
from tests.public_api import assert_explained, text_of

import headrace
from headrace.broker.faults import Faults
from headrace.broker.manual_clock import ManualClock
from headrace.client.consumer.consumer import Consumer
from headrace.errors import ArgumentError, HeadraceError, UnknownName
from headrace.spark.running_app import RunningApp
from headrace.spark.stream_base import NaFunctions
from headrace.type_checks import checks_of

T = TypeVar("T")

CLASSES: list[Any] = [
    *(
        value
        for name in sorted(set(headrace.__all__) - {"HeadraceError", "__version__"})
        if inspect.isclass(value := getattr(headrace, name))
    ),
    Faults,
    ManualClock,
    NaFunctions,
    RunningApp,
]
PASSWORD = "hunter2"  # not written in the calls: a message may show the caller's line
WRONG = [object(), 5, "x", 0.5, b"x", [object()], {"x": object()}, None]


def methods_of(kind: type) -> list[str]:
    found = [
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if name == "__init__" or not name.startswith("_")
    ]
    return [name for name in found if hasattr(getattr(kind, name), "__wrapped__")]


def not_wrapped(kind: type) -> set[str]:
    return {
        name
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and not hasattr(member, "__wrapped__")
    }


METHODS = [(kind, name) for kind in CLASSES for name in methods_of(kind)]
PARAMETERS = [
    (kind, name, parameter)
    for kind, name in METHODS
    for parameter in checks_of(inspect.unwrap(getattr(kind, name)))
    if inspect.signature(getattr(kind, name)).parameters[parameter].kind
    not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
]
# Parameters whose functions report more than a type: the topic's rule, the formats that exist, what a sink needs.
THEIR_OWN = {"topics", "topic", "schema", "listener", "path", "partitions", "output_mode", "sink"}


def names_of(case) -> str:
    return ".".join(part if isinstance(part, str) else part.__name__ for part in case)


def made(kind: type[T]) -> T:
    """An instance without its constructor: the checks come before the method's body."""
    return object.__new__(kind)


def test_every_public_method_is_checked():
    internal = {"intercept", "count_requests", "attach", "detach", "now_ms", "wall_clock_ms", "call_later", "every"}
    assert {name for kind in CLASSES for name in not_wrapped(kind)} <= internal
    assert len(METHODS) > 150


@pytest.mark.parametrize("case", METHODS, ids=names_of)
def test_an_unknown_argument(case):
    kind, name = case
    parameters = inspect.signature(getattr(kind, name)).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters) and name != "__init__":
        return  # transform: the arguments belong to the user's function
    with pytest.raises(ArgumentError) as caught:
        getattr(kind, name)(made(kind), frobnicate=1)
    assert caught.value.code in ("unknown-argument", "wrong-arguments")
    assert 'no argument "frobnicate"' in caught.value.message
    assert isinstance(caught.value, TypeError)
    assert "test_public_api.py" in caught.value.facts["where"]
    assert_explained(caught.value)


@pytest.mark.parametrize("case", PARAMETERS, ids=names_of)
def test_a_wrong_type(case):
    kind, name, parameter = case
    check = checks_of(inspect.unwrap(getattr(kind, name)))[parameter]
    if parameter in THEIR_OWN or (name, parameter) in {
        ("to_topic", "value"),
        ("stream", "value"),
        ("to_topic", "key_format"),
        ("stream", "key_format"),
        ("join", "other"),
        ("joinAsOf", "other"),
        ("unionByName", "other"),
        ("to_postgres", "url"),  # its value may be a password
    }:
        return
    wrong = next(value for value in WRONG if not check.accepts(value))
    with pytest.raises(ArgumentError) as caught:
        getattr(kind, name)(made(kind), **{parameter: wrong})
    assert caught.value.code in ("wrong-type", "bad-value")
    assert caught.value.facts["argument"] == parameter
    assert_explained(caught.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: headrace.StreamsApp("a", config=["sasl.password=" + PASSWORD]),  # type: ignore[arg-type]
        lambda: headrace.StreamsApp("a", auto_offset_reset={"password": PASSWORD}),  # type: ignore[arg-type]
        lambda: made(headrace.Admin).delete_topics(f"kafka://me:{PASSWORD}@h:1"),
        lambda: headrace.StateQuery("h:1", "a", store="counts", token=[PASSWORD]),  # type: ignore[arg-type]
    ],
)
def test_a_message_does_not_quote_values_that_may_be_passwords(call):
    with pytest.raises(ArgumentError) as caught:
        call()
    assert caught.value.code in ("wrong-type", "bad-value")
    assert PASSWORD not in f"{caught.value} {caught.value.facts}"
    assert_explained(caught.value)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_an_unknown_name(kind):
    given = next((name for name in reversed(methods_of(kind)) if len(name) > 3 and name != "__init__"), None)
    with pytest.raises(UnknownName) as caught:
        kind_without_columns(kind).frobnicate()  # type: ignore[attr-defined]
    assert caught.value.code == "unknown-name"
    assert isinstance(caught.value, AttributeError)
    assert_explained(caught.value)
    if given is not None:
        with pytest.raises(UnknownName) as caught:
            getattr(kind_without_columns(kind), given[:-1] + "q")
        assert caught.value.facts["nearest"] in methods_of(kind)
    assert not hasattr(kind_without_columns(kind), "_repr_markdown_")


def kind_without_columns(kind: type) -> object:
    """An instance without its constructor; streams look for columns first."""
    bare: Any = made(kind)
    if hasattr(kind, "columns"):

        class NoColumns:
            columns: tuple[str, ...] = ()

        bare.__dict__["_template"] = NoColumns()
    return bare


@pytest.mark.parametrize(
    ("call", "code", "part"),
    [
        (lambda: headrace.StreamsApp("a", bootstrap_server="x"), "unknown-argument", "write bootstrap_servers="),  # type: ignore[call-arg]
        (lambda: headrace.StreamsApp("a", brokers="x"), "unknown-argument", "write bootstrap_servers="),  # type: ignore[call-arg]
        (lambda: headrace.StreamsApp(), "wrong-arguments", "StreamsApp needs name"),  # type: ignore[call-arg]
        (lambda: headrace.StreamsApp("a", "b"), "wrong-arguments", "arguments behind * are given by name"),  # type: ignore[call-arg]
        (lambda: headrace.StreamsApp("a", name="b"), "wrong-arguments", "twice"),  # type: ignore[misc]
        (lambda: headrace.StreamsApp("two words"), "bad-value", "letters, digits"),
        (lambda: headrace.StreamsApp("a", auto_offset_reset="earlyest"), "bad-value", "did you mean 'earliest'?"),  # type: ignore[arg-type]
        (lambda: headrace.StreamsApp("a", on_error="ignore"), "bad-value", "fail, skip"),  # type: ignore[arg-type]
        (lambda: headrace.StreamsApp("a", config={"max.pol.records": 1}), "unknown-setting", "max.poll"),
        (lambda: headrace.StreamsApp("a", trigger_interval_ms="1s"), "wrong-type", "expected int"),  # type: ignore[arg-type]
        (lambda: Consumer(**{"group.id": "x"}), "unknown-argument", "write group_id="),  # type: ignore[arg-type]
        (lambda: Consumer(fetch_max_bytes=1), "unknown-argument", 'config={"fetch.max.bytes": …}'),  # type: ignore[call-arg]
        (lambda: Consumer(config={"fetch.max.byte": 1}), "unknown-setting", "fetch.max.bytes"),
        (lambda: Consumer(isolation_level="read_comitted"), "bad-value", "did you mean 'read_committed'?"),  # type: ignore[arg-type]
        (lambda: made(Consumer).seek("orders", 5), "wrong-type", "expected tuple[str, int]"),  # type: ignore[arg-type]
        (lambda: headrace.Admin("h:1", client="x"), "unknown-argument", "client_id"),
        (lambda: headrace.Admin("h:1", request_timeout_ms="5"), "wrong-type", "expected int"),
        (lambda: made(headrace.Admin).delete_topics("orders"), "wrong-type", "names=['orders']"),
        (lambda: headrace.ParallelConsumer("orders", print), "wrong-type", "expected Consumer"),  # type: ignore[arg-type]
        (lambda: headrace.ParallelConsumer(made(Consumer), "print"), "wrong-type", "expected function"),  # type: ignore[arg-type]
        (lambda: headrace.Retry(on=ValueError), "wrong-type", "Retry: on is"),  # type: ignore[arg-type]
        (lambda: headrace.Retry(5), "wrong-arguments", "given by name"),  # type: ignore[call-arg]
        (lambda: headrace.DeadLetter(5), "wrong-type", "expected str"),  # type: ignore[arg-type]
        (lambda: headrace.EmbeddedBroker(topics=["a"]), "wrong-type", "expected Mapping[str, int]"),  # type: ignore[arg-type]
        (lambda: headrace.EmbeddedBroker(port="9092"), "wrong-type", "expected int"),  # type: ignore[arg-type]
        (lambda: headrace.EmbeddedBroker().produce("t", "text"), "wrong-type", "produce: values is 'text'"),
        (lambda: headrace.EmbeddedBroker().create_topic("t"), "unknown-name", 'write "create_topics"'),  # type: ignore[attr-defined]
        (lambda: ManualClock().advance(-1), "bad-value", "0 or more"),
        (lambda: headrace.StreamApp, "unknown-name", "headrace.StreamsApp"),
    ],
)
def test_the_near_name_and_the_fix(call, code, part):
    with pytest.raises(HeadraceError) as caught:
        call()
    assert caught.value.code == code
    assert part in text_of(caught.value)
    assert "test_public_api.py" in text_of(caught.value)
    assert_explained(caught.value)


def test_no_spark_was_started():
    """The calls above are refused before PySpark starts a Java machine."""
    script = (
        "from headrace import StreamsApp\n"
        "for given in ({'bootstrap_server': 'x'}, {'config': {'max.pol.records': 1}}, {'on_error': 'ignore'}):\n"
        "    try: StreamsApp('a', **given)\n"
        "    except ValueError: pass\n"
        "    else: raise SystemExit('not refused')\n"
        "import os\n"
        "os.environ['PATH'] = '/nonexistent'\n"
        "os.environ.pop('JAVA_HOME', None)\n"
        "try: StreamsApp('a')\n"
        "except ValueError as error: assert error.code == 'java-missing', error\n"
        "else: raise SystemExit('not refused')\n"
        "from pyspark import SparkContext\n"
        "assert SparkContext._gateway is None\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_mistake_in_the_users_own_function_stays_what_it_is():
    def handler(record):
        return len(5)  # type: ignore[arg-type]

    app = object.__new__(headrace.Stream)
    with pytest.raises(TypeError, match="object of type 'int' has no len"):
        app.transform(handler)


def test_the_wrapper_keeps_what_a_signature_shows():
    assert isinstance(Consumer.poll, FunctionType)
    assert list(inspect.signature(Consumer.poll).parameters) == ["self", "timeout"]
    assert Consumer.poll.__doc__
