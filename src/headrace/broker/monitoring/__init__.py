"""Metrics, health, request logging and the formats of log lines."""
