"""Metrics of brokers, consumers and applications: sensors, families under Kafka's names, and exporters."""
