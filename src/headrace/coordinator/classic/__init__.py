"""Classic groups: members assign partitions among themselves; the coordinator only runs the rebalance."""
