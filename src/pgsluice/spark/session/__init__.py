"""Spark sessions that pgsluice starts: Java, the JVM, PySpark, the session."""
