"""Generated pages docs/reference/compatibility.md and broker-apis.md: versions that are tested, and APIs served."""

from __future__ import annotations

import tomllib
from pathlib import Path

from headrace.broker.requests.api_table import SERVED
from headrace.protocol.api_keys import SUPPORTED

__all__ = ["broker_apis_page", "compatibility_page"]

_TEMPLATES = Path(__file__).with_name("page_templates")


def compatibility_page(repository: Path) -> str:
    """Return the page; the versions are those of `.ci/matrix.toml` in the working tree `repository`."""
    matrix = tomllib.loads((repository / ".ci" / "matrix.toml").read_text(encoding="utf-8"))
    versions = {name: ", ".join(matrix[name]) for name in ("python", "pyspark", "kafka")}
    return _template("compatibility").format(default=matrix["default"], **versions)


def broker_apis_page() -> str:
    """Return the page: every API of the broker's table with its advertised versions, then notes on behaviour."""
    rows = []
    for key in SERVED:
        versions = SUPPORTED[key]
        shown = str(versions.lowest) if versions.lowest == versions.highest else f"{versions.lowest}-{versions.highest}"
        rows.append(f"| {key.value} | {''.join(part.capitalize() for part in key.name.split('_'))} | {shown} |")
    return _template("broker_apis").format(count=len(rows), rows="\n".join(rows))


def _template(name: str) -> str:
    return (_TEMPLATES / f"{name}.md").read_text(encoding="utf-8")
