"""The recorder of groups beside any Kafka."""
