"""`group.consumer.migration.policy`: in which direction a group with members may move. KIP-848."""

from __future__ import annotations

__all__ = ["allows_downgrade", "allows_upgrade", "is_disabled"]

_UPGRADE = frozenset({"upgrade", "bidirectional"})
_DOWNGRADE = frozenset({"downgrade", "bidirectional"})


def allows_upgrade(policy: str) -> bool:
    return policy.lower() in _UPGRADE


def allows_downgrade(policy: str) -> bool:
    return policy.lower() in _DOWNGRADE


def is_disabled(policy: str) -> bool:
    """Not even the members of a group may speak different protocols."""
    return not (allows_upgrade(policy) or allows_downgrade(policy))
