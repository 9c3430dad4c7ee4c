"""Leader epochs as clients name them (KIP-101, KIP-320): who is behind the broker's last start, and who is ahead of it.

One broker leads all partitions, and each of its starts is an election: the epoch is 0 at the first start of a data
directory and one more at each, for all partitions alike. (Kafka counts for each partition by itself.)
"""

from __future__ import annotations

from headrace.broker.logs.partition_logs import LogView
from headrace.broker.services import Services
from headrace.protocol.error_codes import ErrorCode

__all__ = ["UNKNOWN_EPOCH", "end_of_epoch", "leader_epoch_error"]

UNKNOWN_EPOCH = -1


def leader_epoch_error(named: int, broker: Services) -> ErrorCode | None:
    """Return the error of the epoch that a client believes to be current; it may leave it out (-1)."""
    current = broker.metadata.leader_epoch
    if named in (UNKNOWN_EPOCH, current):
        return None
    return ErrorCode.fenced_leader_epoch if named < current else ErrorCode.unknown_leader_epoch


def end_of_epoch(log: LogView, leader_epoch: int, current: int) -> tuple[int, int]:
    """(epoch, end offset): the largest epoch that is not above `leader_epoch` and where its records end; (-1, -1) when
    that cannot be known. An epoch that has written nothing since the newest one that did ends at the log's end."""
    if not 0 <= leader_epoch <= current:
        return -1, -1
    epoch, end_offset = log.end_offset_for_epoch(leader_epoch)
    return (epoch, end_offset) if epoch >= 0 else (leader_epoch, log.high_watermark)
