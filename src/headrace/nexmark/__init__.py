"""Nexmark: a repeatable event generator, the 23 queries as functions of DataFrames and streams, a runner, a verifier.

Needs the extra `spark`. The facts (proportions, distributions, queries) are those of Apache Beam and nexmark/nexmark;
the code is Headrace's own.
"""

from __future__ import annotations

from typing import Final

__all__ = ["QUERY_NAMES"]

# Here, so that the command line completes them without importing PySpark.
QUERY_NAMES: Final = tuple(f"q{number}" for number in range(23))
