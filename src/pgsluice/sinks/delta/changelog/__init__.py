"""Delta tables to which rows are only added."""
