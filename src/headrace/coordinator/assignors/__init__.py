"""Who gets which task: pure computations behind one protocol."""
