"""Refusals at the line that made the mistake."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.errors import TopologyError


def refused(call: Callable[[], object]) -> TopologyError:
    """Return the refusal of `call`; it must name a line of it."""
    with pytest.raises(TopologyError) as caught:
        call()
    lines, first = inspect.getsourcelines(call)
    name, _, place = caught.value.facts["where"].partition(":")
    assert Path(name).name == Path(inspect.getfile(call)).name
    assert first <= int(place.split()[0]) < first + len(lines)
    return caught.value
