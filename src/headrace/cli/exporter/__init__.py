"""Exporter of cluster, topic and group metrics for any Kafka.

Snapshots over Kafka's protocol, what successive snapshots tell, Prometheus families, and the loop that collects.
"""
