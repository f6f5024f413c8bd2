"""A pack of a batch on a model: memory, layouts, attention, what the model is asked, and what it answers."""
