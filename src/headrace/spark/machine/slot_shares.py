"""Fair shares of a cluster's cores: which subtopology gives up a slot for one that has too few.

A slot holds a core as long as the application runs. When a host is lost, or fewer cores come than were asked for, slots
wait for a core, and Spark gives one only when it becomes free: a subtopology may have none at all, while another has
several.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["NONE_PATIENCE_S", "UNEVEN_PATIENCE_S", "SlotShare", "SlotShares"]

# Spark starts another executor for a lost one within seconds. A slot that moves costs the restore of its tasks, so a
# subtopology that still processes records waits longer than one that stands still.
NONE_PATIENCE_S = 10.0
UNEVEN_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotShare:
    """Cores of one subtopology.

    Attributes:
        held: Slots with a core, also those that are still starting.
        waiting: Slots that wait for a core.
    """

    held: int
    waiting: int


class SlotShares:
    """Decides about slots of all subtopologies of an application. Mutable: how long the shares have been uneven."""

    def __init__(self) -> None:
        self._none_since_s: float | None = None
        self._uneven_since_s: float | None = None

    def next_to_give_up(self, shares: Mapping[str, SlotShare], now_s: float) -> str | None:
        """Return the subtopology that is to give up a slot now.

        Args:
            shares: All subtopologies. Called again and again: an unevenness has to last, which is measured from call
                to call.
            now_s: The time, of a clock that never goes back.
        """
        waiting = [name for name, share in shares.items() if share.waiting]
        # 1. The core goes to the waiting subtopology with the fewest slots, by name among equals: so Spark's
        #    FairSchedulingAlgorithm chooses between pools.
        taker = min(waiting, key=lambda name: (shares[name].held, name), default=None)
        giver = min(shares, key=lambda name: (-shares[name].held, name), default=None)
        # 2. With a difference of one, giver and taker would change their roles for ever.
        if taker is None or giver is None or shares[giver].held - shares[taker].held < 2:
            self._none_since_s = self._uneven_since_s = None
            return None
        self._uneven_since_s = now_s if self._uneven_since_s is None else self._uneven_since_s
        if shares[taker].held:
            self._none_since_s = None
            since_s, patience_s = self._uneven_since_s, UNEVEN_PATIENCE_S
        else:
            self._none_since_s = now_s if self._none_since_s is None else self._none_since_s
            since_s, patience_s = self._none_since_s, NONE_PATIENCE_S
        if now_s - since_s < patience_s:
            return None
        # 3. The next one only after a full wait: Spark needs a moment to give the core to the taker.
        self._none_since_s = self._uneven_since_s = None
        return giver
