"""Stores of the state: one LMDB environment per store of a task, and what it takes to open, restore and copy it."""
