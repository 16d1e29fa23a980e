"""Processes, threads, memory and the machine: what the other rooms need of the operating system."""
