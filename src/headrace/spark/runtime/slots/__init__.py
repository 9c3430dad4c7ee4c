"""Resident slots: long-running Spark tasks that take one micro-batch after another, on one host or on a cluster."""
