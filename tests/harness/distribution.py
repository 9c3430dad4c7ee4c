"""The distribution as pyproject.toml declares it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

__all__ = ["extra_of_each_module"]

# Distributions that are imported under another name. `google` belongs to many distributions, so a missing part of it
# does not identify one: protobuf is known by the module of its compiler.
_MODULES = {"protobuf": "grpc_tools", "grpcio-tools": "grpc_tools", "opentelemetry-api": "opentelemetry"}

# Parts of a package that belongs to several distributions: its own extra is that of the first one.
_PARTS = {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"}


def extra_of_each_module() -> dict[str, str]:
    """Return the extra that installs each module, without the extras that extras contain."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    names = [
        (re.split(r"[\[<>=~]", requirement)[0], extra)
        for extra, requirements in project["optional-dependencies"].items()
        for requirement in requirements
        if not requirement.startswith("headrace[")
    ]
    names = [(name, extra) for name, extra in names if name not in _PARTS]
    return {_MODULES.get(name, name.replace("-", "_")): extra for name, extra in names}
