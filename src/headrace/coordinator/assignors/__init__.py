"""Assignors: deterministic computations of who gets which partition or task."""
