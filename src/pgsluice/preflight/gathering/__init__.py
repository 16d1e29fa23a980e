"""Reads facts from the server, this machine and the executors; changes nothing."""
