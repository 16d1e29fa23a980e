"""Shared by the folders above: options, work and its results, command files, the barrier."""
