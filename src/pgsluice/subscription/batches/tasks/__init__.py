"""A batch on an executor: decode, publish, net and apply. Nothing here asks the source."""
