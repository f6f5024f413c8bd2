"""The optimizer steps of a batch, each on its part of the draws, in packs of any size."""
