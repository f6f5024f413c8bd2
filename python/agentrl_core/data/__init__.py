"""The three forms of the data: the `Forest` that grows, the `Batch` that is trained on, the `Store` that lasts."""
