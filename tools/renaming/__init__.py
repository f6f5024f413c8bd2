"""Parts of `tools/rename.py`."""
