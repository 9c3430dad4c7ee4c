"""What error codes of transactional requests mean for the client."""

from __future__ import annotations

import pytest

from headrace.client.transaction_rules import first_refusal, ruling
from headrace.protocol.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("none", "done"),
        ("concurrent_transactions", "again"),
        ("coordinator_load_in_progress", "again"),
        ("not_coordinator", "moved"),
        ("producer_fenced", "fenced"),
        ("invalid_producer_epoch", "fenced"),
        ("stale_member_epoch", "abortable"),
        ("transaction_abortable", "abortable"),
        ("invalid_txn_state", "fatal"),
        ("transactional_id_authorization_failed", "fatal"),
    ],
)
def test_error_codes_of_transactions(code, expected):
    assert ruling(ErrorCode[code]) == expected


def test_final_errors_decide_the_outcome():
    none, again, final = ErrorCode.none, ErrorCode.concurrent_transactions, ErrorCode.stale_member_epoch
    assert first_refusal([none, none]) == none
    assert first_refusal([none, again, final]) == final
    assert first_refusal([none, again, none]) == again
