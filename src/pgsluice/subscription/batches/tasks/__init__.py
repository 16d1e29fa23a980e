"""Batches on an executor: decode, publish, net and apply. Nothing here connects to the source."""
