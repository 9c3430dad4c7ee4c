"""Actions of `headrace consumer-groups`, one module each, texts and columns as in kafka-consumer-groups (4.3.1)."""
