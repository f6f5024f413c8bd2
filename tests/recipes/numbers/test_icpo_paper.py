"""Worked examples of the paper of icpo, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, WRONG, in_turn, solve

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Expert
from agentrl_core.recipes.a2fm import FixedHint
from agentrl_core.recipes.icpo import OneDemonstration
from agentrl_core.reward import OutcomeScore
from agentrl_core.rollout import RolloutSpec

EXAMPLES = PaperExamples("icpo")
WEIGHTED = recipes.ICPO.replace(
    reward=OutcomeScore(),
    advantage=GroupRelative(center="none", scale="none"),
    loss=replace(recipes.ICPO.loss, kl=None, expert=Expert(0.1)),
    minibatches=1,
)
"""The recipe with the advantages of an example as scores, without KL and with the shaping of the code."""


def group(correct: Sequence[float], steered: Sequence[float], number: int) -> Mapping[str, Value]:
    """Return scores and advantages of a group at a step; a rollout without an outcome is `nan`."""
    members = answers([1] * len(correct), [0.0] * len(correct))
    for member, solved, is_steered in zip(members, correct, steered, strict=True):
        member["facts"] = {"shown": float(is_steered)}
        if np.isfinite(solved):
            member["success"] = bool(solved)
    return computed(recipes.ICPO, ["draw.score", "draw.advantage"], members=members, number=number)


@EXAMPLES.by("rewards of a group at steps 0, 100 and 500")
def annealed(example: Example) -> Found:
    given = example.values
    results = [group(given["correct"].tolist(), given["steered"].tolist(), int(step)) for step in given["t"]]
    return {
        "decay": [each["draw.score"][3] - 1.0 for each in results],
        "reward_at_100": results[1]["draw.score"],
        "advantage_at_0": results[0]["draw.advantage"],
        "advantage_at_100": results[1]["draw.advantage"],
        "advantage_at_500": results[2]["draw.advantage"],
    }


def losses(steered: Value, advantage: float, moved: Value, other: float) -> Mapping[str, Value]:
    """Return loss and gradient of a steered rollout with these log-probs and of one with these log-ratios."""
    members: list[dict[str, Any]] = []
    if len(steered):
        members += answers([len(steered)], [advantage], unsampled=True)
    if len(moved):
        members += answers([len(moved)], [other])
    columns = {"recomputed_logprob": [*steered.tolist(), *[-1.0] * len(moved)]}
    policy = {"logprob": [*steered.tolist(), *(moved - 1.0).tolist()]}
    return computed(WEIGHTED, ["loss", "gradient.logprob"], members=members, columns={"token": columns}, policy=policy)


@EXAMPLES.by("a steered success beside a failure, tokens of both in one mean")
def beside(example: Example) -> Found:
    given = example.values
    data = (np.log(given["p"]), float(given["A_s"]), given["d"], float(given["A_o"]))
    none = np.zeros(0)
    result = losses(*data)
    steered = np.concatenate([losses(data[0][[at]], data[1], none, 0.0)["loss"] for at in range(3)])
    return {
        "shaped": -steered / data[1],
        "loss_of_steered_tokens": steered,
        "loss_of_other_tokens": np.concatenate([losses(none, 0.0, data[2][[at]], data[3])["loss"] for at in range(2)]),
        "loss": result["loss"],
        "slope_in_log_probability_before_the_mean": 5 * result["gradient.logprob"][:3],
    }


@EXAMPLES.by("two optimizer steps on a steered and on another token")
def steps(example: Example) -> Found:
    given, none, advantage = example.values, np.zeros(0), float(example.values["A"])
    moved = given["logp_o"] - given["logp_o"][0]
    places = [[at] for at in range(2)]
    return {
        "steered": [losses(given["logp_s"][at], advantage, none, 0.0)["loss"] for at in places],
        "other": [losses(none, 0.0, moved[at], advantage)["loss"] for at in places],
        "loss": [losses(given["logp_s"][at], advantage, moved[at], advantage)["loss"] for at in places],
    }


@EXAMPLES.by("groups of eight with and without a failed steered rollout")
def rejected(example: Example) -> Found:
    """A demonstration is always there, because no group was solved before."""
    program = recipes.ICPO.rollout
    assert isinstance(program, OneDemonstration)
    plain_spec, hinted_spec = (
        RolloutSpec(7),
        RolloutSpec(1, hint=FixedHint("so"), train_without_hint=True, fact="shown"),
    )
    results = {}
    for name, at_least in (("advantage_of_the_code", None), ("advantage_after_rejection", program.at_least)):
        recipe = recipes.ICPO.replace(rollout=replace(program, members=plain_spec + hinted_spec, at_least=at_least))
        texts = [RIGHT if solved else WRONG for solved in example.values["all"]]
        results[name] = recipe.credit(solve(recipe, in_turn(*texts)).batch).column("advantage", "draw")
    return results


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    """The third one scores 1.75 through the bonus of step 100."""
    advantages = group([*(example.values["R"] > 0), np.nan], [0, 0, 1, 0], 100)["draw.advantage"]
    return {"advantage": [*advantages[:3], np.nan if advantages[3] == 0 else advantages[3]]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
