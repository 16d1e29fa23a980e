"""The source before and during the stream: its slot, its state, its timeline."""
