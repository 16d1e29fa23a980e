"""``make bench``: figures of this machine, and their ratios to its own limits."""
