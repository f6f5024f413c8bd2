"""Operators on plain columns, for storage of your own: columns in, columns out, no Batch.

NumPy and Arrow arrays of any library, Polars series, torch CPU tensors and lists go in; NumPy arrays come out.
"""
