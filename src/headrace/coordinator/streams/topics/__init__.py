"""Topics of a topology: required partition counts, internal topics, and what is missing or wrong."""
