"""Facts of a table in a database, and whether the table can take an application's rows. Pure.

Rows are committed in the group before they reach the table. A row that the table refuses then would wait for ever, so a
table with conditions that only some rows meet (CHECK, foreign keys, other unique columns) is refused before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.errors import SinkError
from headrace.spark.sinks.staged_rows import DELETED, PART, ROW, Column, Layout

__all__ = ["ColumnFacts", "TableFacts", "UniqueIndex", "fit_columns", "missing_table", "refused_table"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """A column of a table.

    Attributes:
        name: Its name.
        type: Its type as the database writes it.
        is_required: NOT NULL.
        has_default: Whether rows that lack the column get a value that is not null, or one of a sequence.
        is_computed: Whether no row may give a value (GENERATED ALWAYS).
        equates_texts: Whether different texts may be equal (a collation without regard to case, for example).
    """

    name: str
    type: str
    is_required: bool = False
    has_default: bool = False
    is_computed: bool = False
    equates_texts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UniqueIndex:
    """A unique index, or the primary key.

    Attributes:
        name: Its name.
        columns: Its columns; empty if it is on expressions.
        is_usable: Whether `ON CONFLICT` may name its columns: all rows are in it, and it is checked at once.
        nulls_are_equal: Whether two rows with null count as equal.
    """

    name: str
    columns: tuple[str, ...]
    is_usable: bool = True
    nulls_are_equal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A table that exists.

    Attributes:
        columns: Its columns.
        unique: Its unique indexes, the primary key among them.
        obstacles: (reason, fix) of each property that makes it unfit for any rows.
        may_update: Whether the user may replace rows.
        may_delete: Whether the user may delete rows.
        referrers: Tables with a foreign key to this one.
    """

    columns: tuple[ColumnFacts, ...]
    unique: tuple[UniqueIndex, ...] = ()
    obstacles: tuple[tuple[str, str], ...] = ()
    may_update: bool = True
    may_delete: bool = True
    referrers: tuple[str, ...] = ()


def fit_columns(
    name: str,
    facts: TableFacts,
    rows: Sequence[tuple[str, str]],
    key: Sequence[str],
    fit_type: Callable[[str, str], tuple[str, str] | None],
    *,
    deletes: bool = False,
) -> Layout:
    """Return how rows get into a table.

    Args:
        name: Name of the sink.
        facts: The table.
        rows: (name, Spark's simple type) of the rows' columns.
        key: Columns by which a row replaces an earlier one; empty for rows that are added only.
        fit_type: Returns (type of the staging column, type to which it is cast or "") for a Spark type and a type of
            the table; None if a value would change.
        deletes: Whether some rows are deletions of their key.

    Raises:
        SinkError: `sink-refused`, with the reason and the fix.
    """
    for reason, fix in facts.obstacles:
        raise refused_table(name, reason, fix)
    known = {one.name: one for one in facts.columns}
    columns: list[Column] = []
    for column, kind in rows:
        if column in (PART, ROW, DELETED):
            raise refused_table(name, f'"{column}" is a name of the staging table', "rename the column")
        if column not in known:
            near = next((one for one in known if one.lower() == column.lower()), None)
            fix = f'rename the column to "{near}"' if near else "add it to the table, or drop it from the rows"
            raise refused_table(name, f'the table has no column "{column}" ({kind})', fix)
        if known[column].is_computed:
            raise refused_table(
                name, f'the table computes "{column}" by itself', f'drop it from the rows: .drop("{column}")'
            )
        fitted = fit_type(kind, known[column].type)
        if fitted is None:
            raise refused_table(
                name,
                f'the column "{column}" is {known[column].type} in the table and {kind} in the rows',
                _type_fix(column, kind),
            )
        staged, cast = fitted
        columns.append(Column(name=column, staged=staged, cast=cast, is_required=known[column].is_required))
    given = {column for column, _ in rows}
    for one in facts.columns:
        if one.name not in given and one.is_required and not one.has_default and not one.is_computed:
            raise refused_table(
                name, f'the column "{one.name}" is NOT NULL, and the rows lack it', "give it a default, or write it"
            )
    if key:
        _check_changes(name, facts, deletes=deletes)
    own = _own_index(name, facts.unique, key)
    _check_other_indexes(name, (one for one in facts.unique if one is not own), given)
    for column in key:
        if known[column].equates_texts:
            raise refused_table(
                name,
                f'the collation of "{column}" makes different texts equal: rows of two keys would replace each other',
                "give the column a binary collation (PostgreSQL: deterministic)",
            )
    needs_values = set(key) if own is not None and not own.nulls_are_equal else set()
    columns = [replace(one, is_required=one.is_required or one.name in needs_values) for one in columns]
    return Layout(columns=tuple(columns), key=tuple(key), deletes=deletes)


def refused_table(name: str, why: str, fix: str) -> SinkError:
    """Return the error of a table that cannot take the rows."""
    return SinkError("sink-refused", f"{name} cannot take the rows: {why}", f"{fix[0].upper()}{fix[1:]}.", sink=name)


def missing_table(place: str, table: str, similar: str | None, columns: str) -> SinkError:
    """Return the error of a table that does not exist.

    Args:
        place: The database as it is shown.
        table: The table that was named.
        similar: A table whose name differs in case only.
        columns: Definitions of columns that take the rows.
    """
    fix = f"Write {similar}, as the database does." if similar else f"Create it: CREATE TABLE {table} ({columns})."
    return SinkError("sink-refused", f"{place} has no table {table}", fix, sink=f"{place}/{table}")


def _check_changes(name: str, facts: TableFacts, *, deletes: bool) -> None:
    if not facts.may_update:
        raise refused_table(name, "the user may not replace rows", "GRANT UPDATE, SELECT ON the table TO the user")
    if deletes and not facts.may_delete:
        raise refused_table(name, "the user may not delete rows", "GRANT DELETE, SELECT ON the table TO the user")
    if deletes and facts.referrers:
        raise refused_table(
            name,
            f"some rows delete others, and a foreign key of {facts.referrers[0]} may refuse it",
            "drop that foreign key, or write to another table",
        )


def _own_index(name: str, unique: Iterable[UniqueIndex], key: Sequence[str]) -> UniqueIndex | None:
    """Return the index on exactly the key's columns."""
    if not key:
        return None
    found = next((one for one in unique if one.is_usable and set(one.columns) == set(key)), None)
    if found is None:
        columns = ", ".join(f'"{column}"' for column in key)
        raise refused_table(
            name,
            f"rows replace each other by {columns}, and no primary key and no unique constraint has exactly these "
            "columns",
            f"ALTER TABLE .. ADD UNIQUE ({columns}), or CREATE UNIQUE INDEX .. ON .. ({columns})",
        )
    return found


def _check_other_indexes(name: str, unique: Iterable[UniqueIndex], given: set[str]) -> None:
    for one in unique:
        # A column that the rows lack has a default, as that of a sequence, which keeps rows apart.
        if one.columns and not set(one.columns) <= given:
            continue
        columns = ", ".join(f'"{column}"' for column in one.columns) or "expressions"
        raise refused_table(
            name,
            f"{one.name} makes {columns} unique, and two rows may have the same values",
            "drop that index, or write to another table; only rows of an aggregate replace each other",
        )


def _type_fix(column: str, kind: str) -> str:
    if kind.startswith(("array<", "map<", "struct<")):
        return f"write it as JSON: .withColumn('{column}', F.to_json('{column}'))"
    return "cast it, or change the column of the table"
