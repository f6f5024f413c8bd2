"""Two tiny families, a tokenizer of the same vocabulary, and the model's own log-probs as a reference for engines."""

import numpy as np
import pytest
import torch
from hand_made import tiny_model


@pytest.fixture(scope="session")
def tokenizer():
    from agentrl_core import env, warm_start

    return warm_start.build(env.ReasoningGym(["chain_sum", "lcm"], held_out=8), seed=0)[1]


@pytest.fixture(scope="session")
def make_model(tokenizer):
    """make_model(family, seed=0, **config): a model with this session's vocabulary."""
    shape = {
        "hidden_size": 64,
        "head_dim": 32,
        "intermediate_size": 96,
        "max_position_embeddings": 256,
        "initializer_range": 0.1,  # sharp enough that probabilities differ
        "vocab_size": len(tokenizer),
    }

    def make(family, seed=0, **config):
        return tiny_model(family, torch.float32, seed=seed, **(shape | config)).eval()

    return make


@pytest.fixture(scope="session")
def own_words():
    """own_words(model, request, segment, sampling): log-probs and entropies by one plain forward over all tokens.

    With top=10 the entropies are sums over the ten most likely tokens alone.
    """

    def compute(model, request, segment, sampling, top=None):
        ids = torch.from_numpy(np.concatenate([request.tokens, segment.tokens]).astype(np.int64))[None]
        with torch.no_grad():
            x = model(ids).logits[0, len(request.tokens) - 1 : -1].double() / sampling.temperature
        if sampling.top_k:
            likeliest = torch.topk(x, sampling.top_k).indices
            x = torch.full_like(x, -torch.inf).scatter(-1, likeliest, x.gather(-1, likeliest))
        if sampling.top_p < 1:
            for row in x:
                p, order = torch.softmax(row, -1).sort(descending=True)
                count = int((p.cumsum(-1) < sampling.top_p).sum()) + 1
                row[order[count:]] = -torch.inf
        log_p = torch.log_softmax(x, -1)
        chosen = log_p.gather(-1, ids[0, len(request.tokens) :, None])[:, 0]
        log_p = log_p if top is None else log_p.topk(top).values
        entropy = -(log_p.exp() * log_p.clamp(min=-1e30)).sum(-1)
        return chosen.numpy(), entropy.numpy()

    return compute
