"""Positions of groups on the command line, whatever their kind: partitions, moments, CSV plans, resets, deletions."""
