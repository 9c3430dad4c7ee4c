"""Table of a PostgreSQL database, by the driver of Apache Arrow (ADBC): rows are staged by binary COPY.

The steps are those of `database`. Staged rows and commits are durable also where the server's default is
`synchronous_commit = off`: the group's offsets are committed after them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

from headrace.errors import SinkError
from headrace.spark.sinks.database import Connection, DatabaseSink, LockTimeoutError, rows_of
from headrace.spark.sinks.staged_rows import Layout, quoted
from headrace.spark.sinks.table_facts import ColumnFacts, TableFacts, UniqueIndex, missing_table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["PostgresSink", "check_url", "fit_type", "open_sink", "read_facts"]

# A server that is out of reach is an error after these times, and not a micro-batch that never ends.
URL_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "30",
    "tcp_user_timeout": "60000",
    "application_name": "headrace",
}
IDLE_IN_TRANSACTION = "30s"  # a driver that was suspended does not keep the next owner from its task
# A statement that waits for a lock longer than this fails, unless the role, the database or the URL has a limit of its
# own. Longer than the time above: the lock of a driver that was suspended ends first. Not much longer: micro-batches
# wait meanwhile, and what they hold (ALTER TABLE, VACUUM FULL) mostly ends in seconds or takes hours.
LOCK_TIMEOUT = "45s"
LOCK_NOT_AVAILABLE = "55P03"
LONGEST_KEY_BYTES = 2000  # an entry of a B-tree has 2,704
INTEGERS = {"tinyint": 2, "smallint": 2, "int": 4, "bigint": 8}
INTEGER_COLUMNS = {"smallint": 2, "integer": 4, "bigint": 8}
PLAIN = {
    "boolean": ("boolean", {"boolean"}),
    "float": ("real", {"real", "double precision"}),
    "double": ("double precision", {"double precision"}),
    "binary": ("bytea", {"bytea"}),
    "date": ("date", {"date"}),
    "timestamp": ("timestamp with time zone", {"timestamp with time zone", "timestamp(6) with time zone"}),
    "timestamp_ntz": ("timestamp without time zone", {"timestamp without time zone", "timestamp(6) without time zone"}),
    "string": ("text", {"text", "character varying"}),
}
PARSED = ("json", "jsonb", "uuid")
# Julian day 0 (4714-11-24 BC), at which times and dates begin, and the last date (5874898-06-02); since 1970. Times end
# behind the last one of Spark.
FIRST_TIME_US = -210_866_803_200_000_000
FIRST_DATE, LAST_DATE = -2_440_588, 2_145_042_905


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSink(DatabaseSink):
    """A table that exists in a PostgreSQL database. `table` is "schema.table"; `schema` and `relation` its parts."""

    schema: str
    relation: str

    def _connect(self) -> Connection:
        return PostgresConnection(self.address, self.schema)

    def _beside(self, name: str) -> str:
        return f"{quoted(self.schema)}.{quoted(name)}"

    @property
    def target(self) -> str:
        return self._beside(self.relation)

    def _exists(self, connection: Connection, table: str) -> bool:
        [(found,)] = connection.execute("SELECT to_regclass($1) IS NOT NULL", table)
        return bool(found)

    def _facts(self, connection: Connection) -> TableFacts:
        return read_facts(connection, self.target)

    def _fit_type(self, kind: str, column: str) -> tuple[str, str] | None:
        return fit_type(kind, column)

    def _table_id(self, connection: Connection) -> str:
        [(database, table)] = connection.execute(
            "SELECT (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), "
            "to_regclass($1)::oid::bigint",
            self.target,
        )
        return f"{database}/{table}"

    def _lock_catalog(self, connection: Connection) -> None:
        # Of two instances that create a table at once the second fails on an index of the catalog, also with
        # IF NOT EXISTS.
        connection.execute("SELECT pg_advisory_xact_lock(hashtext('headrace'))::text")

    def _encode(self, rows: pa.Table) -> pa.Table:
        for column in rows.schema:
            _check_values(column.name, rows.column(column.name))
        if self.layout.key:
            _check_key_size(rows.select(self.layout.key))
        return rows.select([one.name for one in self.layout.columns])

    def _lock_holders(self, connection: Connection) -> list[str]:
        # Readers (AccessShareLock) keep no row out. A row that another session has changed is locked by its
        # transaction, which has a lock on the table besides: so locks that exclude our rows come first.
        found = connection.execute(
            "SELECT a.pid::bigint, coalesce(a.usename::text, 'unknown'), coalesce(a.application_name, ''), "
            "coalesce(a.state, 'in a state that this user does not see'), "
            "coalesce(extract(epoch FROM clock_timestamp() - min(a.xact_start))::bigint, 0) "
            "FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid WHERE l.locktype = 'relation' AND l.granted "
            "AND l.mode <> 'AccessShareLock' AND l.pid <> pg_backend_pid() AND l.database = "
            "(SELECT oid FROM pg_database WHERE datname = current_database()) AND l.relation IN "
            "(to_regclass($1)::oid, to_regclass($2)::oid) GROUP BY a.pid, a.usename, a.application_name, a.state "
            "ORDER BY max(CASE WHEN l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareUpdateExclusiveLock') THEN 0 "
            "ELSE 1 END) DESC, min(a.xact_start), a.pid LIMIT 3",
            self.target,
            self._beside("headrace_tasks"),
        )
        return [
            f'process {pid} (user {user}, application "{application}", {state}, {seconds} s in its transaction)'
            for pid, user, application, state, seconds in found
        ]

    @property
    def _numbered(self) -> str:
        return "id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"

    @property
    def _locks(self) -> str:
        return " FOR UPDATE"

    @property
    def _newest_only(self) -> bool:
        return True

    def reading(self, column: str, kind: str) -> tuple[str, str]:
        # The text of times and dates depends on settings of the session, and names years before Christ in words.
        since = f"CAST(round(extract(epoch FROM {column}) * 1000000) AS bigint)"
        if kind == "binary":
            return f"encode({column}, 'hex')", "try_to_binary({}, 'hex')"
        if kind == "date":
            return f"{column} - DATE '1970-01-01'", "date_from_unix_date(CAST({} AS int))"
        if kind == "timestamp":
            return since, "timestamp_micros(CAST({} AS bigint))"
        if kind == "timestamp_ntz":
            seconds = "CAST(CAST({} AS decimal(24, 6)) / 1000000 AS decimal(18, 6))"
            return since, f"TIMESTAMP_NTZ'1970-01-01 00:00:00' + make_dt_interval(0, 0, 0, {seconds})"
        return f"CAST({column} AS text)", f"try_cast({{}} AS {kind})"

    def _as_text(self, column: str) -> str:
        return f"CAST({column} AS text)"


class PostgresConnection:
    """A connection by ADBC, in autocommit mode.

    Raises:
        OSError: from all methods. Its text has no password.
        LockTimeoutError: if another session holds a lock for longer than `lock_timeout`.
    """

    def __init__(self, address: str, schema: str = "") -> None:
        from adbc_driver_postgresql import dbapi

        self._address, self._schema = address, schema
        with self._os_errors():
            self._connection = dbapi.connect(_with_defaults(address), autocommit=True)
            self._cursor = self._connection.cursor()

    def execute(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with self._os_errors():
            self._cursor.execute(statement, list(values) or None)
            return [] if self._cursor.description is None else list(self._cursor.fetchall())

    def append(self, table: str, rows: pa.Table) -> None:
        with self._os_errors():
            self._cursor.adbc_ingest(table, rows, mode="append", db_schema_name=self._schema)

    def begin(self) -> None:
        self.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        self.execute(
            "SELECT set_config('idle_in_transaction_session_timeout', $1, true), set_config('synchronous_commit', "
            "CASE current_setting('synchronous_commit') WHEN 'off' THEN 'on' "
            "ELSE current_setting('synchronous_commit') END, true), set_config('lock_timeout', "
            "CASE current_setting('lock_timeout') WHEN '0' THEN $2 ELSE current_setting('lock_timeout') END, true)",
            IDLE_IN_TRANSACTION,
            LOCK_TIMEOUT,
        )

    def close(self) -> None:
        # Errors of a connection that is broken already have been raised before.
        with contextlib.suppress(Exception):
            self._cursor.close()
        with contextlib.suppress(Exception):
            self._connection.close()

    @contextlib.contextmanager
    def _os_errors(self) -> Iterator[None]:
        from adbc_driver_manager import Error

        try:
            yield
        except Error as error:
            text = without_password(" ".join(str(error).split()), self._address)
            state = str(getattr(error, "sqlstate", None) or "")
            # Class 22: a value that no column of its type holds; 23514: a CHECK of the staging table.
            if state.startswith("22") or state == "23514":
                raise ValueError(text) from None
            if state == LOCK_NOT_AVAILABLE:
                raise LockTimeoutError(errno.ETIMEDOUT, text) from None
            full = state == "53100"
            raise OSError(errno.ENOSPC if full else errno.EIO, text) from None


def open_sink(
    url: object, table: str, schema_json: str, key: tuple[str, ...] = (), *, deletes: bool = False
) -> PostgresSink:
    """Return the sink for a table that exists, after checking that it can take the rows.

    Args:
        url: `postgresql://user@host:port/database`.
        table: "schema.table", or "table" in the first schema of the search path that has one.
        schema_json: Columns of the rows (`StructType.json()`).
        key: Columns by which a row replaces an earlier one.
        deletes: Whether some rows are deletions of their key.

    Raises:
        ValueError: if `url` is no URL of a PostgreSQL database, or `table` no name.
        SinkError: if the table cannot take the rows.
        OSError: if the database cannot be used.
    """
    url = check_url(url)
    names = table.split(".")
    if len(names) > 2 or not all(names):
        raise ValueError(f'{table!r} is no name of a table: expected "schema.table"')
    connection = PostgresConnection(url)
    try:
        [(database, is_standby)] = connection.execute("SELECT current_database()::text, pg_is_in_recovery()")
        place = f"postgresql://{_hosts(url)}/{database}"
        if is_standby:
            raise SinkError(
                "sink-refused",
                f"{place} is a standby, which takes no rows",
                "Connect to the primary: its address, or all addresses with ?target_session_attrs=read-write.",
                sink=place,
            )
        target = ".".join(map(quoted, names))
        found = connection.execute(
            "SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = to_regclass($1)",
            target,
        )
        if not found:
            raise _missing(connection, place, table, rows_of(schema_json))
        schema, relation = found[0]
        sink = PostgresSink(
            address=url,
            place=place,
            table=f"{schema}.{relation}",
            schema=schema,
            relation=relation,
            schema_json=schema_json,
            layout=Layout(columns=()),
        )
        return replace(sink, layout=sink.fitted(connection, key, deletes=deletes))
    finally:
        connection.close()


def check_url(url: object) -> str:
    """Return the URL of a PostgreSQL database. Raises ValueError, without the URL's password, for anything else.

    libpq's messages about a URL that it cannot read repeat parts of it, which may be the password.
    """
    fix = "expected postgresql://user@host:port/database, with special characters percent-encoded"
    if not isinstance(url, str) or not re.match(r"postgres(ql)?://", url):
        raise ValueError(f"url= is no URL of a PostgreSQL database: {fix}")
    if not re.fullmatch(r"(%[0-9A-Fa-f]{2}|[^%\s])*", url):
        raise ValueError(f"url= has a space, or a % that begins no escape: {fix}")
    [(address, rest)] = re.findall(r"//([^/?#]*)(.*)", url)
    if address.count("@") > 1 or "@" in rest or "#" in rest:
        raise ValueError(f"url= has a character that is not percent-encoded (@ %40, / %2F, ? %3F, # %23): {fix}")
    for host in address.rpartition("@")[2].split(","):
        if not re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?", host):
            raise ValueError(f"url= has no valid host and port: {fix}")
    return url


def without_password(text: str, url: str) -> str:
    """Return a message in which the URL's password is replaced."""
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    settings = (setting.partition("=") for setting in parts.query.split("&"))
    hidden = [user.partition(":")[2], *(value for name, _, value in settings if name.endswith("password"))]
    for secret in sorted({form for one in hidden for form in (one, unquote(one)) if form}, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def fit_type(kind: str, column: str) -> tuple[str, str] | None:
    """Return the staging type for a Spark type and a column's type, and the cast; None if a value would change."""
    if kind in INTEGERS:
        least = INTEGERS[kind]
        fits = INTEGER_COLUMNS.get(column, 0) >= least
        return ({2: "smallint", 4: "integer", 8: "bigint"}[least], "") if fits else None
    if kind == "string" and column in PARSED:
        # The cast runs here as well, when a row is staged: after the commit of its offsets it cannot fail.
        return "text", column
    if kind in PLAIN:
        staged, known = PLAIN[kind]
        return (staged, "") if column in known else None
    if given := re.fullmatch(r"decimal\((\d+),(\d+)\)", kind):
        digits, scale = map(int, given.groups())
        if column == "numeric":
            return f"numeric({digits},{scale})", ""
        known_type = re.fullmatch(r"numeric\((\d+),(\d+)\)", column)
        if known_type:
            most, fraction = map(int, known_type.groups())
            if fraction >= scale and most - fraction >= digits - scale:
                return f"numeric({digits},{scale})", ""
    return None


def read_facts(connection: Connection, target: str) -> TableFacts:
    """Return the facts of a table. `target`: its quoted name."""
    [(number, kind, durable, rules, secured, inserts, updates, deletes, selects, creates, lost)] = connection.execute(
        "SELECT c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relhasrules, row_security_active(c.oid), "
        "has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE'), "
        "has_table_privilege(c.oid, 'DELETE'), has_table_privilege(c.oid, 'SELECT'), "
        "has_schema_privilege(c.relnamespace, 'CREATE'), "
        "c.relkind = 'p' AND NOT EXISTS (SELECT FROM pg_partitioned_table p WHERE p.partrelid = c.oid "
        "AND p.partdefid <> 0) FROM pg_class c WHERE c.oid = to_regclass($1)",
        target,
    )
    obstacles = [
        (kind not in ("r", "p"), "it is no table", "name a table, and no view or foreign table"),
        (durable != "p", "it is unlogged or temporary: its rows end with a crash of the server", "SET LOGGED"),
        (rules, "it has rewrite rules, which may leave rows out", "use triggers instead"),
        (secured, "row-level security applies to this user", "use a role that is not subject to it (BYPASSRLS)"),
        (lost, "it is partitioned and has no default partition", "create one: CREATE TABLE .. PARTITION OF .. DEFAULT"),
        (not inserts, "the user may not insert rows", "GRANT INSERT, UPDATE, SELECT ON the table TO the user"),
        (not creates, "the user may not create the tables beside it", "GRANT CREATE ON its SCHEMA TO the user"),
    ]
    constraints = connection.execute(
        "SELECT conname::text, contype::text, pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = $1 "
        "AND contype IN ('c', 'f', 'x') ORDER BY conname",
        number,
    )
    obstacles += [
        (True, f"the constraint {name} may refuse committed rows: {text}", "drop it, or write to another table")
        for name, _, text in constraints
    ]
    referrers = connection.execute(
        "SELECT DISTINCT conrelid::regclass::text FROM pg_constraint WHERE confrelid = $1 AND contype = 'f' ORDER BY 1",
        number,
    )
    columns = connection.execute(
        "SELECT a.attname::text, format_type(a.atttypid, a.atttypmod), a.attnotnull, "
        "a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a', "
        "coalesce(NOT c.collisdeterministic, false) FROM pg_attribute a LEFT JOIN pg_collation c "
        "ON c.oid = a.attcollation WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        number,
    )
    unique = connection.execute(
        "SELECT i.indexrelid::regclass::text, coalesce((SELECT json_agg(a.attname ORDER BY k.at) FROM "
        "unnest(i.indkey::int2[]) WITH ORDINALITY k(number, at) JOIN pg_attribute a ON a.attrelid = i.indrelid "
        "AND a.attnum = k.number WHERE k.at <= i.indnkeyatts), '[]')::text, i.indexprs IS NULL, "
        "i.indpred IS NULL AND i.indimmediate AND i.indisvalid, "
        "coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false) "
        "FROM pg_index i WHERE i.indrelid = $1 AND i.indisunique ORDER BY 1",
        number,
    )
    return TableFacts(
        columns=tuple(
            ColumnFacts(
                name=name,
                type=type_name,
                is_required=required,
                has_default=default,
                is_computed=computed,
                equates_texts=equates,
            )
            for name, type_name, required, default, computed, equates in columns
        ),
        unique=tuple(
            UniqueIndex(
                name=name,
                columns=tuple(json.loads(names)) if is_plain else (),
                is_usable=is_plain and is_usable,
                nulls_are_equal=equal,
            )
            for name, names, is_plain, is_usable, equal in unique
        ),
        obstacles=tuple((why, fix) for applies, why, fix in obstacles if applies),
        may_update=updates and selects,
        may_delete=deletes and selects,
        referrers=tuple(name for (name,) in referrers),
    )


def _missing(connection: Connection, place: str, table: str, rows: list[tuple[str, str]]) -> SinkError:
    names = table.split(".")
    similar = connection.execute(
        "SELECT schemaname || '.' || tablename FROM pg_tables WHERE lower(tablename) = lower($1) LIMIT 1", names[-1]
    )
    types = {"tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint"}
    columns = ", ".join(
        f"{quoted(name)} {types.get(kind) or PLAIN.get(kind, (kind.replace('decimal', 'numeric'),))[0]}"
        for name, kind in rows
    )
    return missing_table(place, table, similar[0][0] if similar else None, columns)


def _with_defaults(url: str) -> str:
    given = parse_qs(urlsplit(url).query, keep_blank_values=True)
    added = urlencode({name: value for name, value in URL_DEFAULTS.items() if name not in given})
    return f"{url}{'&' if given else '' if url.endswith('?') else '?'}{added}"


def _hosts(url: str) -> str:
    parts = urlsplit(url)
    return parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", ["localhost"]))


def _check_values(name: str, values: pa.ChunkedArray) -> None:
    """Raise ValueError for values that PostgreSQL cannot store."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    if pa.types.is_string(kind) and pc.any(pc.match_substring(values, "\0")).as_py():
        raise ValueError(f'"{name}" has a text with the character U+0000, which PostgreSQL does not store')
    if pa.types.is_timestamp(kind) or pa.types.is_date32(kind):
        is_date = pa.types.is_date32(kind)
        found = pc.min_max(values.cast(pa.int32() if is_date else pa.int64()))
        least = FIRST_DATE if is_date else FIRST_TIME_US
        if found["min"].is_valid and (found["min"].as_py() < least or (is_date and found["max"].as_py() > LAST_DATE)):
            raise ValueError(f'"{name}" has a time that PostgreSQL does not store')


def _check_key_size(key: pa.Table) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    longest = sum(
        pc.max(pc.binary_length(column)).as_py() or 0
        for column in key.columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    )
    if longest > LONGEST_KEY_BYTES:
        raise ValueError(f"a key has {longest:,} bytes; an index of PostgreSQL takes {LONGEST_KEY_BYTES:,}")
