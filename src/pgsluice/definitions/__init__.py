"""Definitions of the source's tables, types, publications and collations, as values.

The catalog reads them from the server; tasks on executors get them pickled, and load no driver of
PostgreSQL for that. Nothing here asks a server.
"""
