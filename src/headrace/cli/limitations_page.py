"""The page docs/reference/limitations.md: a template, and tables of the refusals that the code itself raises.

A row is *Planned* when the message of its refusal announces the feature, else *Not supported*: page and error agree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, get_args

from headrace.errors import ConfigError
from headrace.spark.analysis.aggregate_split import aggregate_limits
from headrace.spark.analysis.static_join import NARROW_JOINS, WIDE_JOINS
from headrace.spark.grouped_stream import GroupedStream, StreamTable
from headrace.spark.refused_methods import (
    REFUSED_GROUPED_METHODS,
    REFUSED_METHODS,
    REFUSED_PROPERTIES,
    REFUSED_TABLE_METHODS,
)
from headrace.spark.spark_session import JUDGED_SETTINGS, check_master
from headrace.spark.stream import Stream
from headrace.spark.topology.nodes import FormatName
from headrace.spark.unsupported import OTHER_FORMATS, is_planned, refused_format

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["limitations_page"]

Refusal = tuple[str, str, str]  # code, message, fix

# One example of each kind of Spark master that is not local. `check_master` itself is asked, so that a kind that
# becomes supported fails the generation of this page instead of remaining on it.
_CLUSTER_MASTERS: Final = ("k8s://host",)


def limitations_page(template: str) -> str:
    """Return the page: `template` with the lists and tables below filled in."""
    stream, table = _methods(Stream), _methods(StreamTable)
    refused = {**REFUSED_METHODS, **REFUSED_PROPERTIES}
    aggregates, refused_aggregates = aggregate_limits()
    return template.format(
        stream_methods=_names(stream),
        stream_refused=_refusals({name: words for name, words in refused.items() if name not in stream}),
        table_methods=_names(table - set(REFUSED_TABLE_METHODS)),
        table_refused=_refusals(
            REFUSED_TABLE_METHODS | {name: words for name, words in refused.items() if name in stream - table}
        ),
        group_methods=_names(_methods(GroupedStream)),
        group_refused=_refusals(REFUSED_GROUPED_METHODS),
        aggregates=_names(aggregates, sort=False),
        aggregates_refused=_table(
            (name, "Not supported", reason, fix) for name, (reason, fix) in refused_aggregates.items()
        ),
        formats=_names(get_args(FormatName), sort=False),
        formats_refused=_refusals({name: _format_refusal(name) for name in sorted(OTHER_FORMATS)}),
        joins=_names(dict.fromkeys(NARROW_JOINS.values()), sort=False),
        joins_refused=_names(WIDE_JOINS, sort=False),
        masters=_refusals({master: _master_refusal(master) for master in _CLUSTER_MASTERS}, status="Planned"),
        settings_refused="\n".join(
            f"| `{name}` | `{wanted}` | {why} |"
            for name, (wanted, is_required, why) in JUDGED_SETTINGS.items()
            if is_required
        ),
    )


def _methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def _names(names: Iterable[str], *, sort: bool = True) -> str:
    return ", ".join(f"`{name}`" for name in (sorted(names, key=_ignore_case) if sort else names))


def _ignore_case(name: str) -> tuple[str, str]:
    # `groupBy` and `groupby` are equal without case: the name itself decides, since the order of a set differs by run.
    return name.lower(), name


def _refusals(refusals: Mapping[str, Refusal], *, status: str | None = None) -> str:
    """Return the rows of a table; `status=None` takes each row's from its message."""
    return _table(
        (name, status or ("Planned" if is_planned(message) else "Not supported"), message, fix)
        for name, (_, message, fix) in refusals.items()
    )


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """Return rows of (name, status, reason, fix) as Markdown.

    Names share a row if status and fix are equal, and reasons too apart from the name.
    """
    groups: dict[tuple[str, str, str], dict[str, str]] = {}
    for name, status, reason, fix in rows:
        # Two reasons are equal if they differ in the method's own name only.
        groups.setdefault((status, reason.replace(name, "…"), fix), {})[name] = reason
    lines = []
    for (status, common, fix), reasons in groups.items():
        reason = common.removeprefix("… ") if len(reasons) > 1 else next(iter(reasons.values()))
        lines.append(f"| {_names(reasons, sort=False)} | {status} | {reason} | {fix} |")
    return "\n".join(lines)


def _format_refusal(value_format: str) -> Refusal:
    error = refused_format(value_format, "program.py:1")
    return error.code, error.message, error.fix


def _master_refusal(master: str) -> Refusal:
    try:
        check_master(master)
    except ConfigError as error:
        return error.code, error.message, error.fix
    raise AssertionError(f"{master} is a master that applications run on: take it off this page")
