"""Micro-batches: their plans, the stages that run them, and their commits."""
