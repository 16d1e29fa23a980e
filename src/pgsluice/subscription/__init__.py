"""Subscriptions: a streaming query each, from the spool to a target, and the run around them."""
