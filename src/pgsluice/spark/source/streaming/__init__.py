"""A streaming query: its batches, its subscription, and the capture that it may start."""
