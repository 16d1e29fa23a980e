"""From libpq's frames to durable segments, and which LSN may then be acknowledged."""
