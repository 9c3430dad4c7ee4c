"""Rules shared by consumer and streams groups, as Kafka's `org.apache.kafka.coordinator.group.modern`."""
