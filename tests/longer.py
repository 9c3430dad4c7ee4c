"""HEADRACE_LONG=1 adds the longer versions that CI's 25 minutes have no room for: `longer` marks a test that is one."""

from __future__ import annotations

import os

import pytest

__all__ = ["LONG", "longer"]

LONG = bool(os.environ.get("HEADRACE_LONG"))
longer = pytest.mark.skipif(not LONG, reason="the longer version: HEADRACE_LONG=1")
