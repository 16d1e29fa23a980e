"""The commands, one module each: its arguments, the function that it calls, and its exit code."""
