"""The subscriptions' records."""
