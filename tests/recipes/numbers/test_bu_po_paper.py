"""Worked examples of the paper of bu_po, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, given_advantages
from hand_made import tiny_model
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import Forest, recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Policy, Train
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.bu_po import internal_policy

EXAMPLES = PaperExamples("bu_po")
RECIPE = recipes.BU_PO
# Without the group of one: its advantage is 0 here.
CommonExamples(EXAMPLES, RECIPE, but=["a group of one"], losses=given_advantages(RECIPE))
GIVEN = RECIPE.replace(advantage=GroupRelative(center="none", scale="none"), minibatches=1)
"""The recipe whose rewards are advantages, with one optimizer step per batch of each model that is not frozen."""


@EXAMPLES.by("internal and whole log-probabilities of a token")
def log_probs(example: Example) -> Found:
    """Layers up to 5 add nothing to the embedding h; other layers and a final norm make the last hidden state."""
    given = {name: torch.from_numpy(example.values[name]) for name in ("h", "h_last")}
    model = tiny_model(
        "qwen3", vocab_size=3, hidden_size=2, num_hidden_layers=8, num_attention_heads=1, num_key_value_heads=1
    ).eval()
    with torch.no_grad():
        for layer in model.model.layers[:6]:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight.copy_(given["h"].expand(3, 2))
        model.model.norm.weight.fill_(1.0)
        last = model(torch.tensor([[0]]), output_hidden_states=True).hidden_states[-1][0, 0]
        model.model.norm.weight.copy_(given["h_last"] / last)
        model.lm_head.weight.copy_(torch.tensor([[1, 0], [0, 1], [-1, 1]]))
    forest = Forest()
    forest.add_group(0, "task")
    for token in range(3):
        trajectory = forest.start(0, token)
        forest.append(trajectory, [0], kind="prompt")
        forest.append(trajectory, [token], kind="action", logprobs=[-1.0])
        forest.finish(trajectory, reward=1.0)
    (update,) = given_advantages(RECIPE).updates(forest.freeze().with_columns("draw", advantage=np.ones(3)))
    results = {}
    for name, policy in (("internal_logp", internal_policy(model)), ("whole_logp", model)):
        (pack,) = update.pack(max_tokens=100, layout="sequence")
        results[name] = pack.run(policy).logprob.detach().numpy()
    return results


@EXAMPLES.by("ratios of the two phases")
def phases(example: Example) -> Found:
    given = example.values
    free = tuple(Train(Policy(clip=None), model=link.model) for link in RECIPE.losses())
    models = {"internal": "internal", "policy": "whole"}

    def compute(step: int, model: str, recipe: Recipe) -> Mapping[str, Value]:
        """Return losses and gradients of a step, counted from 1, with the recomputed log-probs of a model."""
        return computed(
            recipe,
            ["loss"],
            members=answers([1, 1], given["A"].tolist()),
            columns={"token": {"recomputed_logprob": given[f"{models[model]}_old"].tolist()}},
            number=step - 1,
            **{name: {"logprob": given[f"{prefix}_new"].tolist()} for name, prefix in models.items()},
        )

    gradients = {"internal": "gradient.internal.logprob", "policy": "gradient.logprob"}
    numbers: Found = {}
    trained = []
    for step, model in zip(given["step"].astype(int).tolist(), models, strict=True):
        losses = compute(step, model, GIVEN)
        trained.append([f"loss.{name}" in losses for name in models])
        numbers[f"loss_step_{step}"] = losses[f"loss.{model}"]
        slopes = compute(step, model, GIVEN.replace(loss=free))[gradients[model]]
        numbers[f"ratio_step_{step}"] = -2 * slopes / given["A"]
    internal, policy = np.array(trained).T
    assert (internal != policy).all()
    return {"internal_phase": internal, **numbers}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
