"""The causal log of a group: its changes, standstill by partition, rates before and after. Pure."""
