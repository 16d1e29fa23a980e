"""Functions that run as tasks of a Spark job."""
