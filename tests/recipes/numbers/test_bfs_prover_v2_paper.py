"""Worked examples of the paper of bfs_prover_v2, computed by the recipe."""

from __future__ import annotations

import pytest
import torch
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import Forest, recipes
from agentrl_core.recipes.bfs_prover_v2 import TacticBand
from agentrl_core.schedule import SyncModel

EXAMPLES = PaperExamples("bfs_prover_v2")


@EXAMPLES.by("a band of perplexity and the loss of the kept steps (second-hand)")
def band(example: Example) -> Found:
    """The middle three of five, as quantiles."""
    surprise = (-example.values["nll"]).tolist()
    members = [{**answer, "logprobs": [of]} for answer, of in zip(answers([1] * 5, [1.0] * 5), surprise, strict=True)]
    found = computed(
        recipes.BFS_PROVER_V2.replace(weight=TacticBand(0.2, 0.8)),
        ["step.keep", "loss"],
        members=members,
        policy={"logprob": surprise},
    )
    return {"keep": found["step.keep"], "loss": found["loss"]}


@EXAMPLES.by("reward of each step (second-hand)")
def rewards(example: Example) -> Found:
    members = answers([1] * 5, example.values["on_proof"].tolist())
    policy = {"logprob": (-example.values["nll"]).tolist()}
    found = computed(recipes.BFS_PROVER_V2, ["draw.advantage", "loss"], members=members, policy=policy)
    return {"reward": found["draw.advantage"], "loss": found["loss"]}


@EXAMPLES.by("retraining begins at the base")
def restart(example: Example) -> Found:
    """A weight that three rounds move; the hook sets it back at the plateau, and the next training moves it."""
    hook = recipes.BFS_PROVER_V2.hooks
    assert hook == SyncModel("base", "policy", when=hook.when)
    base, policy = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        base.weight.fill_(float(example.values["base"]))
        policy.weight.fill_(float(example.values["base"] + example.values["rounds"].sum()))
    before = policy.weight.item()
    forest = Forest(iteration=0)
    forest.add_group(0, "a")
    handle = forest.start(0, 0)
    forest.append(handle, [1], kind="prompt")
    forest.append(handle, [2], kind="action", logprobs=[-1.0])
    forest.finish(handle, reward=1.0)
    recipe = recipes.BFS_PROVER_V2.replace(hooks=SyncModel("base", "policy"))  # at the plateau
    updates = recipe.updates(recipe.credit(forest.freeze()), models={"base": base, "policy": policy})
    list(updates)
    recipe.run_hooks(updates)
    return {"before": before, "after": policy.weight.item() + 0.5}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
