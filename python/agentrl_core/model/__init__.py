"""Run packs of a batch through a model: memory, layouts, attention, requested outputs and their results."""
