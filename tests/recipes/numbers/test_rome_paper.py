"""Worked examples of the paper of rome, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, Riddles, script

from agentrl_core import Collector, recipes
from agentrl_core.advantage import Discounted, GroupRelative
from agentrl_core.loss import Policy, Reinforce
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.rome import FromChunks
from agentrl_core.weight import ImportanceWeight

EXAMPLES = PaperExamples("rome")
CHUNKS = recipes.ROME.replace(
    old_logprob="behaviour",
    advantage=GroupRelative(column="given", level="step", center="none", scale="none"),
    weight=None,
)
"""The recipe with given returns of chunks, and the engine's log-probs as those of the old policy."""


def path(lengths: Sequence[int]) -> str:
    """Return a rollout of chunks of these lengths."""
    return "1 " + " ~ 9 ".join(f"| 3*{length}" for length in lengths)


def factors(recipe: Recipe, *rollouts: tuple[Value, Sequence[Value]]) -> list[Value]:
    """Return factors of grad log p of each chunk's first token, from returns and token log-ratios of rollouts."""
    lengths = [[len(chunk) for chunk in chunks] for _, chunks in rollouts]
    members = [
        {"path": path(each), "reward": float(returns[-1]), "logprobs": [-3.0] * sum(each)}
        for each, (returns, _) in zip(lengths, rollouts, strict=True)
    ]
    moves = np.concatenate([chunk for _, chunks in rollouts for chunk in chunks])
    step_returns = [float(value) for returns, _ in rollouts for value in returns]
    gradients = computed(
        recipe,
        ["gradient.logprob"],
        members=members,
        columns={"step": {"given": step_returns}},
        policy={"logprob": (moves - 3.0).tolist()},
    )["gradient.logprob"]
    ends = np.cumsum([length for each in lengths for length in each])
    parts = np.split(-gradients * len(moves), ends[:-1])
    for part in parts:
        np.testing.assert_allclose(part, part[0], rtol=1e-5)
    firsts = np.array([part[0] for part in parts])
    return np.split(firsts, np.cumsum([len(each) for each in lengths])[:-1])


@EXAMPLES.by("three chunks of one, three and two tokens")
def returns(example: Example) -> Found:
    """Rewards of chunks are those at their ends; the tokens of tools have no return."""
    given = example.values
    own_tokens, gamma = given["mask"] > 0, float(given["gamma"])
    (advantage,) = recipes.ROME.chain("advantage")
    assert isinstance(advantage, Discounted)
    recipe = recipes.ROME.replace(advantage=replace(advantage, gamma=gamma), weight=None)

    def compute(rewards: Sequence[float]) -> Value:
        member = {"path": path([1, 3, 2]), "reward": 1, "steps": [{"reward": float(each)} for each in rewards]}
        return computed(recipe, ["token.advantage"], members=[member])["token.advantage"]

    at_ends = given["r"][[0, 4, 8]].tolist()
    token_returns = np.zeros(len(own_tokens))
    token_returns[own_tokens] = compute(at_ends)
    return {"returns": token_returns, "returns_by_final_reward_alone": compute([0.0, 0.0, at_ends[-1]])[[0, 1, 4]]}


@EXAMPLES.by("the ratio of a chunk is a geometric mean, chunks do not multiply")
def ratios(example: Example) -> Found:
    """The ratio itself, without the bound of failures."""
    (policy,) = CHUNKS.chain("loss")
    assert isinstance(policy, Policy)
    free = CHUNKS.replace(loss=replace(policy, surrogate=Reinforce(negative="ratio"), clip=None))
    chunks = [np.atleast_1d(example.values[name]) for name in ("d1", "d2", "d3")]
    return {"chunk_ratio": -factors(free, (-np.ones(3), chunks))[0]}


@EXAMPLES.by("the mask compares training and inference engine by chunk")
def mask(example: Example) -> Found:
    given = example.values
    (weight,) = recipes.ROME.chain("weight")
    assert isinstance(weight, ImportanceWeight)
    assert weight.at_most == given["H"]
    moved = [np.atleast_1d(given[name]) for name in ("e1", "e2")]
    lengths = [len(each) for each in moved]
    columns = {"token": {"recomputed_logprob": (np.concatenate(moved) - 2.0).tolist()}}
    members = [{"path": path(lengths), "reward": 1, "logprobs": [-2.0] * sum(lengths)}]

    def compute(mask_weight: ImportanceWeight) -> Value:
        recipe = recipes.ROME.replace(weight=mask_weight)
        return computed(recipe, ["token.weight"], members=members, columns=columns)["token.weight"][[0, lengths[0]]]

    return {"ratio": compute(replace(weight, kind="truncate", at_most=100.0)), "keep": compute(weight)}


@EXAMPLES.by("a success without ratio, a failure with a truncated one")
def truncated(example: Example) -> Found:
    given = example.values
    positive, negative = factors(
        CHUNKS,
        (given["G_pos"], [np.full(2, np.log(rho)) for rho in given["rho_pos"]]),
        (given["G_neg"], [np.full(3, np.log(rho)) for rho in given["rho_neg"]]),
    )
    return {"positive": positive, "negative": negative}


@EXAMPLES.by("the second optimizer step moves the ratio of a failure's chunk")
def second_step(example: Example) -> Found:
    given = example.values

    def compute(name: str) -> Value:
        return np.array(
            [factors(CHUNKS, (np.atleast_1d(given[name]), [given[at]]))[0][0] for at in ("first", "second")]
        )

    return {"negative_factor": compute("G_neg"), "positive_factor": compute("G_pos")}


@EXAMPLES.by("rollback along a trajectory of five chunks")
def rollback(example: Example) -> Found:
    """The policy always succeeds, so each start is learned immediately."""
    starts = len(example.values["success"])
    program = recipes.ROME.rollout
    assert isinstance(program, FromChunks)
    recipe = recipes.ROME.replace(rollout=replace(program, kind="rollback"))
    world = Riddles((*["look"] * (starts - 1), RIGHT))
    collect = Collector(script(lambda *_: RIGHT), world, recipe, task_pool=1)
    order = []
    for _ in range(starts):
        batch = collect(tasks=1, group_size=1)
        collect.end_iteration(batch, {})
        order.append(batch.column("given", "draw")[0])
    return {"start_after": np.array(order)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
