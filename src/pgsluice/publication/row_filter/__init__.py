"""The row filter language: SQL text -> syntax -> bound expression -> truth, three-valued."""
