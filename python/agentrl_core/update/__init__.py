"""The optimizer steps of a batch: what each trains on, in packs of any size."""
