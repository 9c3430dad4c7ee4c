"""Tables of a PostgreSQL server: types, values that it does not store, tables that are refused, and connections."""

import datetime as dt
import itertools
import re
import signal
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from tests.harness.postgres_server import PASSWORD, USER
from tests.harness.sink_stories import TASK, changes_table, schema_json, write_alone, write_part

from headrace.errors import SinkError
from headrace.spark.sinks.database import LockTimeoutError, idle_connections
from headrace.spark.sinks.interface import DELETED_COLUMN
from headrace.spark.sinks.postgres import PostgresConnection, check_url, fit_type, open_sink, without_password

NAMES = itertools.count()
UTC = dt.UTC


pytestmark = pytest.mark.usefixtures("no_idle_connections")


@pytest.fixture
def schema(server):
    """A schema for the tables of one test."""
    name = f"s{next(NAMES)}"
    run(server, f"CREATE SCHEMA {name}")
    yield name
    idle_connections.close()
    run(server, f"DROP SCHEMA {name} CASCADE")


def run(server, statement, *values):
    with server.connection() as connection:
        return connection.execute(statement, *values)


def sink_of(server, schema, columns, fields, *, key=(), kind="TABLE", name="t", behind=""):
    run(server, f"CREATE {kind} {schema}.{name} ({columns}){behind}")
    return open_sink(server.url(), f"{schema}.{name}", schema_json(fields), key)


TYPES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "boolean": ("boolean", pa.bool_(), [True, False]),
    "tinyint": ("smallint", pa.int8(), [-128, 127]),
    "smallint": ("bigint", pa.int16(), [-32768, 32767]),
    "int": ("integer", pa.int32(), [-(2**31), 2**31 - 1]),
    "bigint": ("bigint", pa.int64(), [-(2**63), 2**63 - 1]),
    "float": ("double precision", pa.float32(), [0.5, float("inf")]),
    "double": ("double precision", pa.float64(), [0.1, -1e300]),
    "decimal(10,2)": ("numeric(12,3)", pa.decimal128(10, 2), [Decimal("-12345678.90"), Decimal("0.01")]),
    "decimal(38,10)": ("numeric", pa.decimal128(38, 10), [Decimal("9" * 28 + ".0000000001"), Decimal("0E-10")]),
    "string": ("text", pa.string(), ["", "ü \U0001f600 'x' \"y\" \\"]),
    "binary": ("bytea", pa.binary(), [b"", b"\x00\xff"]),
    "date": ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    "timestamp": (
        "timestamptz",
        pa.timestamp("us", "UTC"),
        [dt.datetime(1582, 10, 4, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)],
    ),
    "timestamp_ntz": (
        "timestamp",
        pa.timestamp("us"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC).replace(tzinfo=None), None],
    ),
}
AS_JSON = {"tinyint": "byte", "smallint": "short", "int": "integer", "bigint": "long"}


@pytest.mark.slow
def test_values_of_every_type_come_back_equal(server, schema):
    names = {kind: f"c{number}" for number, kind in enumerate(TYPES)}
    columns = ", ".join(f"{names[kind]} {column}" for kind, (column, _, _) in TYPES.items())
    sink = sink_of(server, schema, columns, [(names[kind], AS_JSON.get(kind, kind)) for kind in TYPES])
    wanted = {names[kind]: [*values, None] for kind, (_, _, values) in TYPES.items()}
    rows = pa.table({names[kind]: pa.array(wanted[names[kind]], arrow) for kind, (_, arrow, _) in TYPES.items()})
    write_alone(sink, 0, rows)
    with server.connection() as connection:
        found = connection.execute(f"SELECT * FROM {schema}.t")
    by_name = dict(zip(wanted, zip(*found, strict=True), strict=True))
    for kind, name in names.items():
        read = [Decimal(one) if one is not None and kind.startswith("decimal") else one for one in by_name[name]]
        assert read == wanted[name], kind


@pytest.mark.slow
def test_texts_of_a_type_of_their_own_are_checked_when_they_are_staged(server, schema):
    fields = [("a", "string"), ("b", "string"), ("c", "string")]
    sink = sink_of(server, schema, "a jsonb, b json, c uuid", fields)
    good = {"a": '{"x": [1, 2]}', "b": "null", "c": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}
    assert sink.pending(TASK) == []
    part = write_part(sink, 0, pa.table({name: [text, None] for name, text in good.items()}))
    for name in good:
        with pytest.raises(ValueError, match="invalid input syntax"):
            write_part(sink, 1, pa.table({**{one: [text] for one, text in good.items()}, name: ["no such thing"]}))
    sink.commit([part])
    assert run(server, f"SELECT a ->> 'x', b::text, c::text FROM {schema}.t WHERE c IS NOT NULL") == [
        ("[1, 2]", "null", good["c"])
    ]


@pytest.mark.slow
def test_values_that_the_server_does_not_store_are_bad_records(server, schema):
    columns = "a text, b date, c timestamptz, d text UNIQUE"
    fields = [("a", "string"), ("b", "date"), ("c", "timestamp"), ("d", "string")]
    sink = sink_of(server, schema, columns, fields, key=("d",))
    assert sink.pending(TASK) == []
    good = {
        "a": pa.array(["x"]),
        "b": pa.array([-2_440_588], pa.int32()).cast(pa.date32()),
        "c": pa.array([-210_866_803_200_000_000]).cast(pa.timestamp("us", "UTC")),
        "d": pa.array(["k" * 2000]),
    }
    sink.commit([write_part(sink, 0, pa.table(good))])
    later = pa.table({**good, "b": pa.array([2_145_042_905], pa.int32()).cast(pa.date32()), "d": ["later"]})
    sink.commit([write_part(sink, 1, later.set_column(2, "c", pa.array([2**63 - 1]).cast(pa.timestamp("us", "UTC"))))])
    assert run(server, f"SELECT b::text, c::text LIKE '294247-%' FROM {schema}.t WHERE d = 'later'") == [
        ("5874897-12-31", True)
    ]
    for name, bad, why in (
        ("a", pa.array(["a\0b"]), "U+0000"),
        ("b", pa.array([-2_440_589], pa.int32()).cast(pa.date32()), "does not store"),
        ("b", pa.array([2_145_042_906], pa.int32()).cast(pa.date32()), "does not store"),
        ("c", pa.array([-210_866_803_200_000_001]).cast(pa.timestamp("us", "UTC")), "does not store"),
        ("d", pa.array(["k" * 2001]), "a key has 2,001 bytes"),
        ("d", pa.array([None], pa.string()), "is null"),
    ):
        with pytest.raises(ValueError, match=why.replace("+", r"\+")):
            write_part(sink, 2, pa.table({**good, name: bad}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["CREATE UNLOGGED TABLE {s}.t (n bigint)"], "unlogged"),
        (["CREATE TABLE {s}.b (n bigint)", "CREATE VIEW {s}.t AS SELECT * FROM {s}.b"], "it is no table"),
        (["CREATE TABLE {s}.t (n bigint) PARTITION BY RANGE (n)"], "no default partition"),
        (["CREATE TABLE {s}.b (n bigint PRIMARY KEY)", "CREATE TABLE {s}.t (n bigint REFERENCES {s}.b)"], "FOREIGN"),
        (["CREATE TABLE {s}.t (n bigint, EXCLUDE USING btree (n WITH =))"], "EXCLUDE"),
        (["CREATE TABLE {s}.t (n bigint)", "CREATE UNIQUE INDEX ON {s}.t ((n % 5))"], "expressions unique"),
        (["CREATE TABLE {s}.t (n bigint)", "CREATE RULE r AS ON INSERT TO {s}.t DO INSTEAD NOTHING"], "rewrite"),
        (["CREATE DOMAIN {s}.small AS bigint CHECK (VALUE < 5)", "CREATE TABLE {s}.t (n {s}.small)"], "small in the"),
        (["CREATE TABLE {s}.t (n bigint GENERATED ALWAYS AS IDENTITY)"], "computes"),
        (["CREATE TABLE {s}.t (n integer)"], "integer in the table and bigint"),
    ],
)
def test_tables_that_may_refuse_committed_rows_are_refused(server, schema, statements, why):
    for statement in statements:
        run(server, statement.format(s=schema))
    with pytest.raises(SinkError) as raised:
        open_sink(server.url(), f"{schema}.t", schema_json([("n", "long")]))
    assert why in raised.value.message
    assert raised.value.fix


@pytest.mark.slow
def test_keys_that_make_different_rows_equal_are_refused(server, schema):
    fields = [("a", "string"), ("n", "long")]
    for index in ("UNIQUE (a) DEFERRABLE", "UNIQUE (a, n)"):
        with pytest.raises(SinkError, match="no unique constraint"):
            sink_of(server, schema, f"a text, n bigint, {index}", fields, key=("a",), name=f"t{next(NAMES)}")
    run(server, f"CREATE TABLE {schema}.part (a text, n bigint)")
    run(server, f"CREATE UNIQUE INDEX ON {schema}.part (a) WHERE n > 0")
    with pytest.raises(SinkError, match="no unique constraint"):
        open_sink(server.url(), f"{schema}.part", schema_json(fields), ("a",))
    if run(server, "SELECT count(*) FROM pg_collation WHERE collprovider = 'i'") != [(0,)]:
        run(server, f"CREATE COLLATION {schema}.ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
        with pytest.raises(SinkError, match="different texts equal"):
            sink_of(server, schema, f"a text COLLATE {schema}.ci UNIQUE, n bigint", fields, key=("a",), name="folded")


@pytest.mark.slow
def test_null_is_a_key_where_the_index_takes_nulls_for_equal(server, schema):
    if int(run(server, "SELECT current_setting('server_version_num')")[0][0]) < 150000:
        pytest.skip("NULLS NOT DISTINCT comes with PostgreSQL 15")
    fields = [("a", "string"), ("n", "long")]
    sink = sink_of(server, schema, "a text, n bigint, UNIQUE NULLS NOT DISTINCT (a)", fields, key=("a",))
    for number in range(2):
        write_alone(sink, number, pa.table({"a": pa.array([None, "x"], pa.string()), "n": [number, number]}))
    assert sorted(run(server, f"SELECT n FROM {schema}.t")) == [(1,), (1,)]


@pytest.mark.slow
def test_a_sequence_numbers_the_rows_and_partitions_take_them(server, schema):
    columns = "id bigserial, n bigint, PRIMARY KEY (id, n)"
    run(server, f"CREATE TABLE {schema}.t ({columns}) PARTITION BY RANGE (n)")
    run(server, f"CREATE TABLE {schema}.rest PARTITION OF {schema}.t DEFAULT")
    sink = open_sink(server.url(), f"{schema}.t", schema_json([("n", "long")]))
    write_alone(sink, 0, pa.table({"n": [5, 5, 6]}))
    assert run(server, f"SELECT id, n FROM {schema}.t ORDER BY id") == [(1, 5), (2, 5), (3, 6)]


@pytest.mark.slow
def test_a_table_that_was_created_again_is_refused(server, schema):
    sink = sink_of(server, schema, "n bigint", [("n", "long")])
    write_alone(sink, 0, pa.table({"n": [1]}))
    part = write_part(sink, 1, pa.table({"n": [2]}))
    run(server, f"DROP TABLE {schema}.t")
    run(server, f"CREATE TABLE {schema}.t (n bigint)")
    for call in (lambda: sink.positions(TASK), lambda: sink.commit([part])):
        with pytest.raises(SinkError, match="was created again"):
            call()
    assert run(server, f"SELECT * FROM {schema}.t") == []
    run(server, f"DELETE FROM {schema}.headrace_tasks WHERE target = '{schema}.t'")
    sink.commit([part])
    assert run(server, f"SELECT * FROM {schema}.t") == [(2,)]


@pytest.mark.slow
def test_users_who_lack_a_privilege_are_refused(server, schema):
    user = f"reader_{schema}"
    run(server, f"CREATE ROLE {user} LOGIN PASSWORD 'pw'")
    url = server.url(user=user, password="pw")
    run(server, f"CREATE TABLE {schema}.t (n bigint UNIQUE, m bigint)")
    grants = (
        ("", f"has no table {schema}.t"),
        (f"GRANT USAGE ON SCHEMA {schema} TO {user}", "may not insert rows"),
        (f"GRANT INSERT ON {schema}.t TO {user}", "may not create the tables beside it"),
        (f"GRANT CREATE ON SCHEMA {schema} TO {user}", "may not replace rows"),
    )
    try:
        for grant, why in grants:
            if grant:
                run(server, grant)
            with pytest.raises((SinkError, OSError), match=why if grant else "permission denied|has no table"):
                open_sink(url, f"{schema}.t", schema_json([("n", "long"), ("m", "long")]), ("n",))
        run(server, f"GRANT UPDATE, SELECT ON {schema}.t TO {user}")
        sink = open_sink(url, f"{schema}.t", schema_json([("n", "long"), ("m", "long")]), ("n",))
        write_alone(sink, 0, pa.table({"n": [1, 1], "m": [1, 2]}))
        assert run(server, f"SELECT n, m FROM {schema}.t") == [(1, 2)]
        run(server, f"ALTER TABLE {schema}.t ENABLE ROW LEVEL SECURITY")
        with pytest.raises(SinkError, match="row-level security"):
            sink.check()
    finally:
        idle_connections.close()
        run(server, f"DROP OWNED BY {user}")
        run(server, f"DROP ROLE {user}")


@pytest.mark.slow
def test_commits_are_durable_where_the_server_does_not_wait_for_its_disk(server, schema):
    with server.connection() as connection:
        query = "SELECT " + ", ".join(
            f"current_setting('{name}')" for name in ("synchronous_commit", "idle_in_transaction_session_timeout")
        )
        connection.execute("SET synchronous_commit = off")
        connection.begin()
        assert connection.execute(query) == [("on", "30s")]
        connection.execute("COMMIT")
        connection.execute("SET synchronous_commit = remote_apply")
        connection.begin()
        assert connection.execute(query) == [("remote_apply", "30s")]


@pytest.mark.slow
def test_the_limit_for_locks_is_the_one_of_the_url_if_there_is_one(server):
    for more, limit in (("", "45s"), ("?options=-c%20lock_timeout%3D300s", "5min")):
        connection = PostgresConnection(server.url(more=more))
        try:
            connection.begin()
            [(found,)] = connection.execute("SELECT current_setting('lock_timeout')::interval = $1::interval", limit)
            assert found
            connection.execute("COMMIT")
            assert connection.execute("SELECT current_setting('lock_timeout')") == [("5min" if more else "0",)]
        finally:
            connection.close()


@pytest.mark.slow
def test_rows_behind_a_lock_on_the_table_are_added_once_when_it_ends(server, schema, caplog):
    run(server, f"CREATE TABLE {schema}.t (n bigint)")
    url = server.url(more="?options=-c%20lock_timeout%3D100ms")
    sink = open_sink(url, f"{schema}.t", schema_json([("n", "long")]))
    assert sink.pending(TASK) == []
    part = write_part(sink, 0, pa.table({"n": [1]}))
    with server.connection() as other:
        other.begin()
        other.execute(f"LOCK TABLE {schema}.t IN ACCESS EXCLUSIVE MODE")
        # It is over before the limit of the session that holds the lock.
        with pytest.raises(LockTimeoutError, match=r"another session holds a lock on .* End its transaction") as raised:
            sink.commit([part])
        [(pid,)] = other.execute("SELECT pg_backend_pid()::bigint")
        shown = (
            rf": process {pid} \(user \w+, application \"headrace\", idle in transaction, \d+ s in its transaction\) "
        )
        assert re.search(shown, str(raised.value)), raised.value
        assert PASSWORD not in caplog.text + str(raised.value)
        # The failed transaction holds nothing: the next owner of the task finds the part.
        assert [one.batch for one in sink.pending(TASK)] == [part.batch]
        other.execute("COMMIT")
    sink.commit([part])
    sink.commit([part])
    assert run(server, f"SELECT n FROM {schema}.t") == [(1,)]
    assert sink.pending(TASK) == []


@pytest.mark.slow
def test_rows_with_a_null_in_their_key_are_deleted(server, schema):
    [(version,)] = run(server, "SELECT current_setting('server_version_num')::bigint")
    if version < 150_000:
        pytest.skip("NULLS NOT DISTINCT came with PostgreSQL 15")
    run(server, f"CREATE TABLE {schema}.t (k text, d bigint, n bigint, UNIQUE NULLS NOT DISTINCT (k, d))")
    columns = schema_json([("k", "string"), ("d", "long"), ("n", "long")])
    sink = open_sink(server.url(), f"{schema}.t", columns, ("k", "d"), deletes=True)
    assert sink.pending(TASK) == []
    keys = [(None, 1), ("a", None), (None, None), ("a", 1)]
    arrow = pa.schema([("k", pa.string()), ("d", pa.int64()), ("n", pa.int64())])
    for number, gone in enumerate(([], keys[:1], keys[1:2], keys[2:3])):
        changes = [(key, None if key in gone else number) for key in (gone or keys)]
        sink.commit([write_part(sink, number, changes_table(changes, arrow))])
        assert {(k, d) for k, d, _ in run(server, f"SELECT * FROM {schema}.t")} == set(keys[number:])


@pytest.mark.slow
def test_a_row_that_another_session_has_changed_names_it(server, schema):
    run(server, f"CREATE TABLE {schema}.t (k text PRIMARY KEY, n bigint)")
    url = server.url(more="?options=-c%20lock_timeout%3D100ms")
    sink = open_sink(url, f"{schema}.t", schema_json([("k", "string"), ("n", "long")]), ("k",), deletes=True)
    assert sink.pending(TASK) == []
    run(server, f"INSERT INTO {schema}.t VALUES ('a', 1)")
    gone = pa.table({"k": ["a"], "n": [1], DELETED_COLUMN: [True]})
    part = write_part(sink, 0, gone)
    with server.connection() as other:
        other.begin()
        other.execute(f"UPDATE {schema}.t SET n = 2")
        [(pid,)] = other.execute("SELECT pg_backend_pid()::bigint")
        with pytest.raises(LockTimeoutError, match=f"process {pid} "):
            sink.commit([part])
        other.execute("COMMIT")
    sink.commit([part])
    assert run(server, f"SELECT * FROM {schema}.t") == []


@pytest.mark.slow
def test_a_server_that_crashes_between_two_steps(server, schema):
    """Staged rows survive, an idle connection is replaced, and a transaction that was open is rolled back."""
    sink = sink_of(server, schema, "n bigint", [("n", "long")])
    assert sink.pending(TASK) == []
    part = write_part(sink, 0, pa.table({"n": [1]}))
    server.stop(signal.SIGINT)
    with pytest.raises(OSError, match="refused"):
        sink.commit([part])
    server.start()
    sink.commit([part])

    def lose_the_server():
        with sink.transaction() as connection:
            connection.execute(f"DELETE FROM {schema}.t")
            server.stop(signal.SIGQUIT)
            connection.execute("SELECT 1")

    with pytest.raises(OSError, match=r"terminating connection|closed"):
        lose_the_server()
    server.start()
    assert run(server, f"SELECT n FROM {schema}.t") == [(1,)]
    assert sink.pending(TASK) == []


@pytest.mark.slow
def test_passwords_are_in_no_error_and_no_name(server, schema):
    with pytest.raises(OSError, match="password authentication failed") as raised:
        open_sink(server.url(password="s3cret%21"), "t", schema_json([("n", "long")]))
    assert "s3cret" not in str(raised.value)
    with pytest.raises(OSError, match="does not exist") as raised:
        open_sink(server.url("nowhere"), "t", schema_json([("n", "long")]))
    assert PASSWORD not in str(raised.value)
    sink = sink_of(server, schema, "n bigint", [("n", "long")])
    for text in (repr(sink), str(sink), sink.name):
        assert PASSWORD not in text
        assert "p%2Fw" not in text
    assert sink.name == f"postgresql://127.0.0.1:{server.port}/postgres/{schema}.t"


@pytest.mark.parametrize(
    "url",
    [
        "postgres://h",
        "postgresql://etl@h:5432/d",
        "postgresql://etl:p%2Fw%40x@a:1,b:2/d?target_session_attrs=read-write",
        "postgresql://etl@[::1]:5432/d",
        "postgresql:///d?host=/var/run/postgresql",
    ],
)
def test_urls_of_databases(url):
    assert check_url(url) == url


@pytest.mark.parametrize(
    "url",
    [
        None,
        b"postgresql://u:secret@h/d",
        "mysql://u:secret@h/d",
        "postgresql://u:sec ret@h/d",
        "postgresql://u:secret%@h/d",
        "postgresql://u:sec@ret@h/d",
        "postgresql://u:sec/ret@h/d",
        "postgresql://u:sec?ret@h/d",
        "postgresql://u:1/secret@h/d",
        "postgresql://u:sec#ret@h/d",
        "postgresql://u:secret@h:port/d",
    ],
)
def test_urls_that_libpq_would_quote_are_refused(url):
    """Its messages repeat the part that it cannot read."""
    with pytest.raises(ValueError, match="expected postgresql://") as raised:
        check_url(url)
    assert "sec" not in str(raised.value)


def test_passwords_are_taken_out_of_messages():
    for url in ("postgresql://u:p%40ss@h/d", "postgresql://h/d?user=u&password=p%40ss"):
        assert without_password("no p@ss and no p%40ss here", url) == "no *** and no *** here"
    assert without_password("text", "postgresql://h/d") == "text"


@pytest.mark.parametrize(
    ("kind", "column", "fits"),
    [
        ("int", "smallint", False),
        ("smallint", "integer", True),
        ("bigint", "numeric", False),
        ("decimal(10,2)", "numeric(10,2)", True),
        ("decimal(10,2)", "numeric(10,3)", False),
        ("decimal(10,2)", "numeric(11,1)", False),
        ("decimal(10,2)", "bigint", False),
        ("double", "real", False),
        ("string", "character varying", True),
        ("string", "character varying(10)", False),
        ("string", "character(10)", False),
        ("string", "jsonb", True),
        ("timestamp", "timestamp without time zone", False),
        ("timestamp", "timestamp(3) with time zone", False),
        ("date", "timestamp without time zone", False),
        ("array<int>", "integer[]", False),
        ("struct<a:int>", "jsonb", False),
    ],
)
def test_types_whose_values_would_change_do_not_fit(kind, column, fits):
    assert (fit_type(kind, column) is not None) == fits


@pytest.mark.slow
def test_a_connection_has_a_limit_for_a_server_that_does_not_answer(server):
    with server.connection() as connection:
        assert connection.execute("SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()") == [
            ("headrace",)
        ]
    named = PostgresConnection(server.url(more="?application_name=mine"))
    try:
        assert named.execute("SELECT current_setting('application_name'), current_user::text") == [("mine", USER)]
    finally:
        named.close()
