"""Consumer groups (KIP-848): members, regular expressions, server-side assignment, reconciliation."""
