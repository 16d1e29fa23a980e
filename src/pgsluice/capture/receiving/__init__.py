"""From libpq's frames to durable segments, and what may then be acknowledged."""
