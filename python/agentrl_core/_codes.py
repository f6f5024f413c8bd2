"""What the codes of the tables stand for; the files say the same in the metadata of their columns."""

CODES = {
    "kind": ("prompt", "action", "observation", "injected"),
    "finish_reason": ("none", "stop", "length", "abort"),
    "status": ("finished", "truncated", "aborted", "pruned", "failed", "partial"),
    "origin": ("generated", "expert", "imagined", "imported"),
    "source": ("fresh", "replay", "expert", "failed", "imagined"),
    "old_logprob": ("behaviour", "recomputed", "none"),
    "drift": ("clean", "realigned", "rewritten", "retokenised", "truncated"),
}
"""Name of a column to the names of its codes 0, 1, 2, …"""

PROMPT, ACTION, OBSERVATION, INJECTED = range(4)
"""Codes of `nodes.kind`."""

UNTRAINED = 1 << 31
"""Bit of `steps.flags`: the step's tokens are in the data but not trained; the lower bits are the environment's."""
