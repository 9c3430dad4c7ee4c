"""THE WIRE. Bytes to messages and back (on kio), frames, record batches, Arrow. Opens no socket, reads no clock."""
