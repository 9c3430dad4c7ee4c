"""With whose identity a refused commit goes once more."""

from __future__ import annotations

from dataclasses import replace

from headrace.client.membership.group_events import GroupIdentity, identity_to_retry_with
from headrace.protocol.error_codes import ErrorCode

SENT = GroupIdentity(member_id="m1", generation=5, membership=1)
STALE = ErrorCode.stale_member_epoch


def test_a_newer_epoch_of_the_same_membership() -> None:
    newer = replace(SENT, generation=6)
    assert identity_to_retry_with(SENT, newer, STALE) == newer
    assert identity_to_retry_with(SENT, SENT, STALE) is None
    assert identity_to_retry_with(SENT, newer, ErrorCode.unknown_member_id) is None


def test_not_that_of_the_next_membership() -> None:
    """Found by the simulator: fenced and back under the same id, a member committed over those who had the partitions
    in between."""
    assert identity_to_retry_with(SENT, replace(SENT, generation=9, membership=2), STALE) is None
