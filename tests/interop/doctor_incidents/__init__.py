"""Incidents of groups, provoked with real clients on real brokers and kept as recordings for `headrace doctor`."""
