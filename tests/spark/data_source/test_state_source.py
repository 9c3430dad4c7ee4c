"""Options of `format("headrace-state")`: each has an effect or is refused."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.spark.data_source.state_source import StateOptions

LEAST = {"kafka.bootstrap.servers": "127.0.0.1:1", "group.id": "app", "store": "by-word"}


def test_options_are_read_in_any_case():
    found = StateOptions.parse({**{name.lower(): value for name, value in LEAST.items()}, "ALLOWSTALE": "true"})
    assert (found.group_id, found.store, found.token, found.timeout_ms) == ("app", "by-word", None, 60_000)
    assert found.allow_stale
    assert "s3cret" not in repr(StateOptions.parse({**LEAST, "token": "s3cret"}))


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"group.id": ""}, "group.id"),
        ({"store": " "}, "store"),
        ({"kafka.bootstrap.servers": ""}, "bootstrap.servers"),
        ({"timeoutMs": "soon"}, "timeoutMs"),
        ({"allowStale": "maybe"}, "allowStale"),
        ({"stores": "x"}, "store"),
        ({"kafka.group.id": "x"}, "unknown-setting"),
        ({"path": "/x"}, "path"),
    ],
)
def test_wrong_options_are_refused(options, part):
    with pytest.raises(ConfigError, match=part):
        StateOptions.parse({**LEAST, **options})
