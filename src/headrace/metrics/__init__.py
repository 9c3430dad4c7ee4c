"""Metrics of brokers, consumers and applications: what measures, families under Kafka's names, and Prometheus' text."""
