"""The asyncio runtimes around the pure coordinators of groups and transactions, and their internal topics."""
