"""THE DISK: partition logs in Kafka's own segment layout, synchronous. Imports protocol only."""
