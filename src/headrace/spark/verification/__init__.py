"""Comparison of what an application wrote with a Spark batch of the same program."""
