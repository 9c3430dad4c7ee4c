"""With whose identity a member commits: that of the moment in which the commit is made."""

from __future__ import annotations

from headrace.client.membership.group_events import GroupIdentity
from headrace.protocol.error_codes import ErrorCode

__all__ = ["identity_to_retry_with"]


def identity_to_retry_with(sent: GroupIdentity, now: GroupIdentity, code: int | None) -> GroupIdentity | None:
    """A commit with `sent` was refused with `code`: the identity to send it with once more, None: it failed.

    The epoch of a consumer group may rise while a commit is on its way, and the partitions are still ours: not so when
    the membership was lost meanwhile and the member joined again, for others may have had them in between.
    """
    if code != ErrorCode.stale_member_epoch or now.membership != sent.membership:
        return None
    return now if now.generation > sent.generation else None
