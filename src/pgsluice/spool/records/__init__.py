"""The subscriptions' records, and how far their copies are."""
