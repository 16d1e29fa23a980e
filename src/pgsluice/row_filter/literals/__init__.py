"""Literals: the text that PostgreSQL keeps of one, or the error of its type's input."""
