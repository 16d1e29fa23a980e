"""The subscriptions' records, and the progress of their copies."""
