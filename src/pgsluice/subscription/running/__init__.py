"""The run: locks, capture, Spark, the loop around the subscriptions, and each one at work."""
