"""The demo: a small shop in an embedded PostgreSQL, replicated to Delta and compared at the end."""
