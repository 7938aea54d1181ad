"""Which runs are undone, and which cells run again to recompute a value."""
