"""Diagnosis of a group's rebalances: events from the coordinator's records and client logs, findings, their report."""
