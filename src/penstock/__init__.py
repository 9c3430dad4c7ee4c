"""Kafka Streams for PySpark: start the job twice and the two share the work."""

__version__ = "0.1.0"
