"""The commands, one module each: arguments, what is called, and the exit code."""
