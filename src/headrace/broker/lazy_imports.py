"""Modules that a broker's start does not import: the rules of groups and transactions, compaction, what TLS and SASL
need.

Half of the time of a start were imports, and half of those were for what many brokers are never asked. So the one
place that enters such a part imports it there, in the function that does: `GroupRuntime` the rules of groups with
the first group, `TransactionShards` those of transactions with the first transactional id, `LogCleaner`
compaction, `listener_security` what a listener's protocol needs. Handlers have always been imported with
their API's first request (`api_table`).

A broker in the process of a test pays for what the test uses. The process behind `headrace broker` loads the rules in a
thread as soon as it has said that it is ready, so that no client waits for them.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["RULES", "load_rules"]

RULES = (
    "headrace.coordinator.shard",
    "headrace.broker.coordinators.group_metadata_log",
    "headrace.coordinator.transactions.shard",
    "headrace.broker.coordinators.transaction_log",
    "headrace.broker.coordinators.transaction_completion",
    "headrace.storage.log_cleaning",
)


def load_rules() -> None:
    """May run beside the event loop: none of these modules imports one that imports it."""
    for name in RULES:
        import_module(name)
