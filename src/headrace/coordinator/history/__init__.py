"""The causal log of a group: its changes, standstill by partition, rates before and after. Pure."""

# Here and not beside the records: every broker knows the name at its start, and few record.
HISTORY_TOPIC = "__headrace_group_history"
