"""Histories: tables with each version of a row.

Current versions are found by their keys, and closed ones never again. So they are in separate
files, and a key costs the same however many versions it has had.
"""
