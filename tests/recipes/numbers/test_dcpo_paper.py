"""Worked examples of the paper of dcpo, computed by the recipe."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from arithmetic import Value
from common_examples import CommonExamples, advantages, given_advantages, one_rollout, plain_reward, single_tokens
from compared import column, visits
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.loss import Tokens
from agentrl_core.recipes.dcpo import CumulativeStandardised

EXAMPLES = PaperExamples("dcpo")
CommonExamples(EXAMPLES, recipes.DCPO)
SINGLE = given_advantages(recipes.DCPO)
(CUMULATIVE,) = recipes.DCPO.chain("advantage")
assert isinstance(CUMULATIVE, CumulativeStandardised)


def advantages_at_visit(visits_before: int, mean: float, variance: float, scores: Value) -> Value:
    """Return advantages at a visit after others with this mean and variance."""
    state = {"task 0": [visits_before, mean, float(np.sqrt(variance))]}
    batch = small([(0, [1])] * len(scores), draw_score=scores.tolist())
    return column(CUMULATIVE.add_columns(state, batch))


@EXAMPLES.by("bounds by the old probability")
def bounds(example: Example) -> Found:
    """Compute in double precision: at 0.64 the lower bound has the root of 0."""
    old = torch.tensor(np.log(example.values["q"]))
    (policy,) = recipes.DCPO.chain("loss")
    clip = policy.clip(Tokens(old, None, {"weight_kl": torch.ones(len(old)), "old_logprob": old}), 0.0 * old)
    return {"low": clip.lower.numpy(), "high": clip.upper.numpy()}


@EXAMPLES.by("a first visit with groups of five and of three")
def first(example: Example) -> Found:
    given = example.values
    one, other = advantages(plain_reward(recipes.DCPO), given["R"], given["S"])
    code = recipes.DCPO.replace(advantage=CumulativeStandardised(ddof=1))
    by_code = advantages(plain_reward(code), given["R"])[0]
    return {"advantage_a": one, "advantage_b": other, "advantage_a_of_the_code": by_code}


@EXAMPLES.by("the second and the third visit of a prompt")
def three(example: Example) -> Found:
    reward_groups = [example.values[name].tolist() for name in ("R1", "R2", "R3")]
    _, second, third = visits(CUMULATIVE, *reward_groups)
    state = CUMULATIVE.initial_state()
    for scores in reward_groups:
        closed = CUMULATIVE.add_columns(state, small([(0, [1])] * len(scores), draw_score=scores))
        state = json.loads(json.dumps(CUMULATIVE.next(state, IterationRecord.of(closed))))
    ((_, mean, std),) = state.values()
    return {
        "second": np.array(second),
        "third": np.array(third),
        "mean_after_three": np.array(mean),
        "variance_after_three": np.array(std**2),
    }


@EXAMPLES.by("the third visit with a difference: the smaller smoothed value wins place by place")
def smaller(example: Example) -> Found:
    given = example.values
    before = int(given["i"]) - 1
    return {"advantage": advantages_at_visit(before, float(given["mu_old"]), float(given["var_old"]), given["R"])}


@EXAMPLES.by("a mean that differs between visits: the choice is not the same for all")
def choice(example: Example) -> Found:
    """The scores and the earlier moments are chosen to give `new` and `total`."""
    given = example.values
    before, scores = int(given["i"]) - 1, (given["new"] > 0).astype(float)
    std = 1.0 / float(given["total"][0] - given["total"][2])
    mean = -float(given["total"][2]) * std
    old_mean = (mean * (before + 1) - scores.mean()) / before
    moved = before / (before + 1) * (old_mean - scores.mean()) ** 2
    old_variance = (std**2 * (before + 1) - scores.var() - moved) / before
    return {"advantage": advantages_at_visit(before, old_mean, old_variance, scores)}


@EXAMPLES.by("sum of token means of two responses of unequal length")
def token_means(example: Example) -> Found:
    given = example.values
    members = answers([int(given["n_a"]), int(given["n_b"])], [float(given["A_a"]), float(given["A_b"])])
    return {"objective": -computed(SINGLE, ["loss"], members=members)["loss"]}


@EXAMPLES.by("loss with dynamic bounds and the cap")
def capped(example: Example) -> Found:
    given = [example.values[name] for name in ("old", "new", "A")]
    alone = [single_tokens(SINGLE, *(each[[at]] for each in given))["loss"] for at in range(len(given[0]))]
    return {"token_loss": np.ravel(alone), "loss": one_rollout(SINGLE, *given)["loss"]}


@EXAMPLES.by("the second optimizer step of a batch")
def later_step(example: Example) -> Found:
    result = one_rollout(SINGLE, *(example.values[name] for name in ("old", "second", "A")))
    return {"has_gradient": result["gradient.logprob"] != 0, "objective": -result["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
