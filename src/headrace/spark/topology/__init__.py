"""What an application computes, as plain data: pure, no PySpark, no I/O."""
