"""Optional dependencies of commands: which extra of the distribution provides which package."""

from __future__ import annotations

from importlib.util import find_spec

from headrace.errors import ConfigError
from headrace.extras import EXTRAS

__all__ = ["EXTRA_OF_PACKAGE", "missing_extra", "require_extra"]

# The one table, by its name in this module.
EXTRA_OF_PACKAGE = EXTRAS

# Each extra contains the ones to its right (see pyproject.toml).
_ORDER = ("demo", "spark", "cluster", "client")


def require_extra(extra: str) -> None:
    """Check that the packages of an extra are installed, without importing them.

    Args:
        extra: A name of `project.optional-dependencies`, such as `spark`.

    Raises:
        ConfigError: `extra-missing`, with the command that installs the extra.
    """
    contained = _ORDER[_ORDER.index(extra) :]
    for package, provided_by in EXTRA_OF_PACKAGE.items():
        if provided_by in contained and find_spec(package) is None:
            raise missing_extra(package, extra)


def missing_extra(package: str, extra: str) -> ConfigError:
    """Return the error `extra-missing` for a package that is not installed."""
    return ConfigError(
        "extra-missing",
        f"this command needs the package {package}, which is not installed",
        f"pip install 'headrace[{extra}]'",
        package=package,
        extra=extra,
    )
