"""Looking at groups and deleting them."""
