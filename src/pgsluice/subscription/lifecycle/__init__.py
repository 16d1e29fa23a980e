"""The life of a table: its states, the events between them, and the record that has them."""
