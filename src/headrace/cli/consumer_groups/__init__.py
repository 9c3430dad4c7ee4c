"""What `headrace consumer-groups` does, a module per action; wording and columns are kafka-consumer-groups' (4.3.1)."""
