"""Settings of the broker, its topics and groups: sources, changes at run time, Kafka's names."""
