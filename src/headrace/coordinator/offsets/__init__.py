"""Committed offsets: hard state and its rules."""
