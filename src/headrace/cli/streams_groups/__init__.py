"""Actions of `headrace streams-groups`, one module each, with the texts and columns of kafka-streams-groups (4.3.1)."""
