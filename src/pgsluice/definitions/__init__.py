"""Definitions of the source's tables, types, publications and collations, as values.

The ``catalog`` room reads them from the server. Tasks on executors get them pickled, so they need
no PostgreSQL driver. Nothing here connects to a server.
"""
