"""What only Spark needs: the ``pgoutput`` data source, sessions, and tasks planned from a spool."""
