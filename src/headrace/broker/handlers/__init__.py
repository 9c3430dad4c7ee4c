"""Handlers of all APIs and their access rules, one module per subject, listed in each module's `APIS`."""
