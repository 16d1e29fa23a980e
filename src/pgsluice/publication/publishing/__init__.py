"""Publishes changes: finds the rules that apply to a table, and applies them to its changes."""
