"""Kernels of text: case, patterns and regular expressions."""
