"""Requests in the log: slow ones as warnings, all of them at DEBUG."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.broker.monitoring.request_metrics import RequestLog, RequestMetrics
from headrace.protocol.api_keys import ApiKey
from headrace.protocol.fast_path import ProduceFrame
from headrace.protocol.request_codec import RequestHeader


def test_slow_requests_are_logged_and_waiting_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    def log_lines(api_key: ApiKey, seconds: float, remote: float, slow_ms: int = 1000) -> int:
        caplog.clear()
        header = RequestHeader(api_key=api_key, api_version=3, correlation_id=1, client_id="app\n")
        RequestLog(RequestMetrics(), lambda: slow_ms).log_response(
            header, object(), ("10.0.0.1", 5), seconds=seconds, queue_seconds=0.0, remote_seconds=remote
        )
        return len(caplog.records)

    caplog.set_level("INFO")
    assert log_lines(ApiKey.PRODUCE, 1.0, 0.9) == 1
    facts: dict[str, Any] = vars(caplog.records[0])["facts"]
    assert (facts["api"], facts["total_ms"], facts["local_ms"], facts["peer"]) == (
        "Produce",
        1000.0,
        100.0,
        "10.0.0.1:5",
    )
    assert log_lines(ApiKey.PRODUCE, 0.99, 0.0) == 0
    assert log_lines(ApiKey.FETCH, 30.0, 29.9) == 0
    assert log_lines(ApiKey.FETCH, 30.0, 28.0) == 1
    assert log_lines(ApiKey.PRODUCE, 30.0, 0.0, slow_ms=0) == 0
    usual = ProduceFrame(api_version=13, correlation_id=7, client_id="app", acks=1, topics=[])
    log = RequestLog(RequestMetrics(), lambda: 1000)
    for seconds in (0.0005, 0.9, 1.1):
        log.answered_on_fast_path(usual, ("10.0.0.1", 5), seconds, 0.0)
    assert len(caplog.records) == 1
    facts = vars(caplog.records[0])["facts"]
    assert (facts["api"], facts["version"], facts["correlation_id"], facts["total_ms"]) == ("Produce", 13, 7, 1100.0)
    caplog.set_level("DEBUG")
    assert log_lines(ApiKey.FETCH, 0.001, 0.0) == 1
    caplog.clear()
    RequestLog(RequestMetrics(), lambda: 1000).answered_on_fast_path(usual, ("10.0.0.1", 5), 0.0005, 0.0)
    assert len(caplog.records) == 1
