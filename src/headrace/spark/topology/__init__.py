"""Compiled topologies as plain data. Pure: no PySpark, no I/O."""
