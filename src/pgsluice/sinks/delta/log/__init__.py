"""The log of a Delta table: its versions and their parts, how it is read, and the next commit."""
