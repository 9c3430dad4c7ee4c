"""Committed offsets of groups, also while a transaction holds them back."""

from __future__ import annotations

import pytest

from headrace.client.group_offsets import fetch_offsets
from headrace.errors import BrokerError


def test_an_offset_fetch_that_waits_for_a_transaction_names_it(txn_client, transactions):
    identity = transactions.initialise(["flights-x-0"])["flights-x-0"]
    told = transactions.commit_offsets("readers", {identity: {("a", 0): 5}}, member_id="", member_epoch=-1)
    assert told == {"flights-x-0": None}
    with pytest.raises(BrokerError, match="the offset fetch of readers with UNSTABLE_OFFSET_COMMIT") as caught:
        fetch_offsets(txn_client, "readers", [("a", 0)], require_stable=True, timeout_ms=200)
    assert caught.value.code == "offsets-unstable"
    assert "a transaction of flights-x-0 is open there since offset" in caught.value.facts["why"]
    assert caught.value.facts["transactional_id"] == "flights-x-0"
    assert caught.value.fix.startswith("Wait: ")
