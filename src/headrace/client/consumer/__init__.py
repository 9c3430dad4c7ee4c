"""`Consumer` and `AsyncConsumer`: a Python consumer for any Kafka, with Arrow batches or plain records."""
