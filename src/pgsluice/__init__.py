"""PostgreSQL into the lakehouse with PySpark: logical replication, exactly once, no Kafka."""

__version__ = "0.1.0"
