"""Worked examples of the paper of arsq, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.model.output_layer import score

EXAMPLES = PaperExamples("arsq")
RECIPE = recipes.ARSQ


def episode(
    rewards: Value, values: Value, logprobs: Value, targets: Value, *, tokens: int = 1, **member: Any
) -> Mapping[str, Value]:
    """Return targets, loss and gradients of an episode of actions with these token counts; values cover all tokens."""
    path = "1 " + " ~ 9 ".join([f"| 3*{tokens}"] * len(rewards))
    steps = [{"reward": float(reward)} for reward in rewards]
    return computed(
        RECIPE,
        ["token.return", "loss", "gradient.soft_value", "gradient.logprob"],
        members=[{"path": path, "reward": 0, "steps": steps, **member}],
        columns={"token": {"soft_value": targets.tolist()}},
        policy={"logprob": logprobs.tolist(), "soft_value": values.tolist()},
    )


def head_logprobs(heads: Value, alpha: float) -> tuple[Value, Value]:
    """Return log-probs of all bins of a dimension, and the soft values at its place."""
    count = len(heads)
    rows = torch.from_numpy(np.tile(heads, (count, 1)))
    scale = torch.full((count,), 1.0 / alpha, dtype=torch.float64)
    logprob, _, value = score(rows, torch.arange(count), scale, entropy_gradient=False, outputs=["soft_value"])
    return logprob.numpy(), value.numpy()


@EXAMPLES.by("two dimensions of three bins")
def dimensions(example: Example) -> Found:
    alpha, action, results = float(example.values["alpha"]), (0, 1), {}
    logprobs, values = zip(*(head_logprobs(example.values[name], alpha) for name in ("h1", "h2")), strict=True)

    def advantages(logprob: Value, value: Value, tokens: int) -> Value:
        """Return, for actions of the last step, the errors of Q to a target of 0, minus the value."""
        count = len(logprob) // tokens
        given = {"tokens": tokens, "temperature": alpha}
        alone = [
            episode(np.zeros(1), value[part], logprob[part], np.zeros(tokens), **given)["gradient.soft_value"][0]
            for part in (slice(place * tokens, (place + 1) * tokens) for place in range(count))
        ]
        return np.array(alone) - value[::tokens]

    for place in range(2):
        results[f"advantages_{place + 1}"] = advantages(logprobs[place], values[place], 1)
        results[f"policy_{place + 1}"] = np.exp(logprobs[place])
    chosen = [np.array([each[place][action[place]] for place in range(2)]) for each in (logprobs, values)]
    results["advantage"] = advantages(*chosen, 2)
    return {**results, "log_probability": chosen[0].sum()}


@EXAMPLES.by("TD over an episode of three steps that fails at its end")
def episode_of_three(example: Example) -> Found:
    given = example.values
    targets = np.append(0.0, np.minimum(given["v1"], given["v2"])[:2])  # one per state: no state leads to the first
    result = episode(given["r"], given["V"], given["A"], targets)
    return {
        "target": result["token.return"],
        "error": len(given["V"]) * result["gradient.soft_value"],
        "loss": result["loss"],
    }


@EXAMPLES.by("two optimizer steps: the target follows")
def target_follows(example: Example) -> Found:
    online, followed = example.values["V"], []
    models = {name: torch.nn.Linear(1, 1, bias=False).double() for name in ("policy", "target")}
    models["target"].weight.data.fill_(float(example.values["start"]))
    optimizer = torch.optim.SGD(models["policy"].parameters(), lr=0.0)
    recipe = RECIPE.replace(epochs=len(online))
    batch = small([(0, [1])], draw_score=[0.0]).with_columns("token", soft_value=[0.0])
    batch = batch.with_columns("step", reward=[0.0])
    updates = recipe.updates(recipe.credit(batch), models=models)
    for update, value in zip(updates, online, strict=True):  # the target moves between two steps
        followed.append(models["target"].weight.item())
        models["policy"].weight.data.fill_(value)
        update.step(optimizer)
    recipe.run_hooks(updates, **models)
    followed = [*followed[1:], models["target"].weight.item()]
    rewards = np.array([float(example.values["r"]), 0.0])
    targets = np.array([0.0, followed[-1]])
    returns = episode(rewards, np.zeros(2), np.zeros(2), targets)["token.return"]
    return {"target_value_1": followed[0], "target_value_2": followed[1], "next_target": returns[0]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
