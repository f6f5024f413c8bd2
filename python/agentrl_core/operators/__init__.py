"""Operators on plain columns, for custom storage: columns in, columns out, without a Batch.

NumPy and Arrow arrays of any library, Polars series, torch CPU tensors and lists go in; NumPy arrays come out.
"""
