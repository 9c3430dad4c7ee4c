"""What `headrace streams-groups` does, one module per action; wording and columns are kafka-streams-groups' (4.3.1)."""
