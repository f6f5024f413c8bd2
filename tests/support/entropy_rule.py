"""Recompute the temperature by entropy (`engine.EntropyTemperature`) for segments of an engine."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from agentrl_core.engine import EntropyTemperature, Request, Sampling
from agentrl_core.engine.base import generate_all

RULE = EntropyTemperature(zero=1.5, above=0.3, below=0.2, change=0.4)
SAMPLINGS = [Sampling(temperature=0.7, max_tokens=10, by_entropy=RULE), Sampling(temperature=0.7, max_tokens=10)]
"""Sampling with the rule and without it."""


def checked_heights(generate: Any, model: Any, requests: list[Request]) -> list[float]:
    """Generate, compare log-probs with those of the model, and return h of each token that follows the rule."""
    heights: list[float] = []
    for request, segment in zip(requests, generate_all(generate, requests), strict=True):
        ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            x = model(ids).logits[0, len(request.tokens) - 1 : -1].double() / 0.7
        if request.sampling.by_entropy is not None:
            p = torch.softmax(x, -1)
            e = (-(p * p.log()).sum(-1)).clamp(min=1e-8).log()
            h = torch.where(e > 1.5, ((e - 1.5) / 0.3).clamp(max=1.0), ((e - 1.5) / 0.2).clamp(min=-1.0))
            heights += h.tolist()
            x = x / (1 + 0.4 * h)[:, None]
        expected = torch.log_softmax(x, -1).gather(-1, ids[0, len(request.tokens) :, None])[:, 0]
        np.testing.assert_allclose(segment.logprobs, expected, atol=1e-5)
    return heights
