"""Classic groups. For now only those that hold offsets for somebody who is no member."""
