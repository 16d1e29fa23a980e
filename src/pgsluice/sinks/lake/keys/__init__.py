"""Finds rows by their keys: the keys of each data file, in memory, in caches and in sidecars."""
