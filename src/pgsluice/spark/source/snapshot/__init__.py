"""The rows of a table at one position, read with a query or ahead of a stream."""
