"""The run: locks, capture, Spark, and the threads of each subscription."""
