"""A filter's text as a syntax tree, by PostgreSQL's grammar of expressions."""
