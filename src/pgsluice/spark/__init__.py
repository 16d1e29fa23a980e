"""All code that needs Spark: the ``pgoutput`` data source, sessions, and tasks."""
