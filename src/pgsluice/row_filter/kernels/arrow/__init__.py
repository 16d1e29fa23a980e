"""Kernels that compute whole columns with Arrow."""
