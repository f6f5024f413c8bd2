"""Requests for any engine of a real model, and a check that its log-probs are those of the model."""

import numpy as np

from agentrl_core.engine import Request
from agentrl_core.engine.base import generate_all


def some_requests(vocabulary, sampling, count=24):
    """Return requests; each prompt occurs in two of them."""
    random = np.random.default_rng(3)
    prompts = [random.integers(0, vocabulary, random.integers(1, 60), dtype=np.int32) for _ in range(count // 2)]
    # Hashed seeds are this large.
    return [Request(prompts[i % len(prompts)], (1 << 63) - 1 - 12345 * i, sampling) for i in range(count)]


def check(generate, model, own_words, sampling, version):
    """Assert that log-probs and entropies equal those of the model's own forward, under the version."""
    requests = some_requests(generate.vocabulary_size, sampling)
    for request, segment in zip(requests, generate_all(generate, requests), strict=True):
        logprobs, entropies = own_words(model, request, segment, sampling, top=10)
        np.testing.assert_allclose(segment.logprobs, logprobs, atol=1e-5)
        np.testing.assert_allclose(segment.entropies, entropies, atol=1e-5)
        assert (segment.policy_version, segment.seed) == (version, request.seed)
        assert (segment.tokens.dtype, segment.logprobs.dtype) == (np.int32, np.float32)
