"""The life of a table: its states, its events, and the record that keeps them."""
