"""Kernels of dates, times, intervals and time zones."""
