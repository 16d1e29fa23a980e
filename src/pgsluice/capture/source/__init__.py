"""The source before and while it streams: its slot, its state, its timeline."""
