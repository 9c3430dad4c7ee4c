"""Live migration of groups with members between the classic and the consumer protocol (KIP-848, "Migration")."""
