"""Both engines in the same loop: their log-probs equal the model's own, before and after updates."""

import numpy as np
import pytest
import torch

import agentrl_core as arl
from agentrl_core import annotate, engine, recipes


@pytest.mark.parametrize("name", ["transformers", pytest.param("vllm", marks=pytest.mark.vllm)])
def test_behaviour_log_probs_equal_the_models_own_at_every_version(name, world, warm_policy):
    policy, tokenizer = warm_policy
    generate = engine.Transformers(policy, tokenizer) if name == "transformers" else engine.Vllm(policy, tokenizer)
    recipe = recipes.GRPO
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
    sampling = engine.Sampling(temperature=0.8, max_tokens=24)
    collect = arl.Collector(generate, world, recipe, sampling=sampling, context_tokens=160, task_pool=64)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    for iteration in range(3):
        batch = collect(tasks=4, group_size=4)
        assert set(batch.column("policy_version", "token")) == {iteration}
        recomputed = annotate(batch, "own_logprob", policy).column("own_logprob", "token")
        sampled = batch.column("behaviour_logprob", "token")
        assert len(sampled) > 50
        np.testing.assert_allclose(sampled, recomputed, atol=1e-5)
        # A step that changes the weights for any rewards.
        batch = batch.with_columns("draw", advantage=np.linspace(-1, 1, batch.num_draws, dtype=np.float32))
        updates = recipe.updates(batch)
        for update in updates:
            for pack in update.pack(max_tokens=4096):
                update.loss(pack.run(policy), pack).backward()
            optimizer.step()
            optimizer.zero_grad()
        generate.update_weights(policy, version=iteration + 1)
        collect.end_iteration(batch, updates.metrics)
    moved = [not torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True)]
    assert all(moved)
    if name == "vllm":
        generate.close()
