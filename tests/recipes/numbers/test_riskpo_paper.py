"""Worked examples of the paper of riskpo, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, given_advantages, one_rollout
from compared import column as listed
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import Batch, recipes
from agentrl_core.component import IterationRecord
from agentrl_core.loss import Clip, Policy
from agentrl_core.recipes.riskpo import TailRisk

EXAMPLES = PaperExamples("riskpo")
UNSCORED, ALONE = (
    "one response of four has no score (convention)",
    "groups of one: one paper, std 1, quantiles equal its score",
)
OFF_POLICY = "tokens that another policy sampled"
CODE = recipes.RISKPO.replace(advantage=TailRisk(), loss=Policy(clip=Clip(dual=3.0)))
"""The recipe with the options of the mathematics script."""
SINGLE = given_advantages(CODE)
CommonExamples(EXAMPLES, recipes.RISKPO, but=[OFF_POLICY], losses=SINGLE)
(RISK,) = CODE.chain("advantage")
(OF_PAPER,) = recipes.RISKPO.chain("advantage")
assert isinstance(RISK, TailRisk)
assert isinstance(OF_PAPER, TailRisk)
LEVELS = np.arange(1, 20) / 20.0


def batch(*groups: Any) -> Batch:
    """Return groups of draws with these scores; an unscored one is `nan`."""
    rows = [(place, [1]) for place, scores in enumerate(groups) for _ in scores]
    return small(rows, draw_score=[float(score) for scores in groups for score in scores])


def column(rollouts_batch: Batch) -> Value:
    """Return the advantages."""
    return np.array(listed(rollouts_batch))


def with_tracked(component: TailRisk, low: float, high: float, scores: Value) -> Value:
    """Return advantages of one-question papers, with tracked quantiles that have these values at the levels."""
    curve = np.interp(LEVELS, [component.low, component.high], [low, high])
    return column(component.add_columns({"quantiles": curve.tolist()}, batch(scores)))


@EXAMPLES.by("a bundle of two questions with three and two responses")
def bundle(example: Example) -> Found:
    bundles = batch(example.values["r1"], example.values["r2"])
    draw_advantages = column(RISK(bundles))
    paper = column(replace(RISK, credit="uniform")(bundles))
    return {"paper": paper[:2], "question_1": draw_advantages[:3], "question_2": draw_advantages[3:]}


@EXAMPLES.by("the paper's advantage of six bundles")
def of_paper(example: Example) -> Found:
    """The recipe's value is 10/9 of it: both terms are divided by the widths of their levels, 0.2 and 0.6."""
    given = example.values
    result = with_tracked(OF_PAPER, float(given["q_down"]), float(given["q_up"]), given["s"])
    return {"advantage": result * 9 / 10}


@EXAMPLES.by("ratios of two sequences")
def sequences(example: Example) -> Found:
    given = example.values
    away = [given["d_a"], given["d_b"]]
    members = answers([len(each) for each in away], given["A"].tolist())
    policy = {"logprob": (np.concatenate(away) - 1.0).tolist()}
    return {"loss": computed(given_advantages(recipes.RISKPO), ["loss"], members=members, policy=policy)["loss"]}


@EXAMPLES.by("six scores with tracked quantiles")
def tracked(example: Example) -> Found:
    given = example.values
    divided = replace(RISK, high=0.8, credit="uniform")
    natural = replace(divided, scale="none")

    def compute(component: TailRisk) -> Value:
        return with_tracked(component, float(given["q_down"]), float(given["q_up"]), given["s"])

    return {
        "natural": compute(natural),
        "plain": compute(replace(natural, natural_baseline=False)),
        "divided": compute(divided),
    }


@EXAMPLES.by("the tracker after the first and the second step")
def tracker(example: Example) -> Found:
    given, state = example.values, RISK.initial_state()
    at = [int(np.argmin(np.abs(LEVELS - level))) for level in given["levels"]]
    after = []
    for name in ("first", "second"):
        closed = RISK.add_columns(state, batch(given[name]))
        state = RISK.next(state, IterationRecord.of(closed))
        after.append(np.array(state["quantiles"])[at])
    return {"after_first": after[0], "after_second": after[1]}


@EXAMPLES.by("credit by four rules for a paper of advantage -0.8")
def credit(example: Example) -> Found:
    """Shares of the first paper; its questions have these means and spreads over five responses."""
    given = example.values
    first, second, third = given["r"]
    questions = batch([first, 1, 1, 0, 0], [second, 1, 0, 0, 0], [third, 0, 0, 0, 0])
    uniform = column(replace(RISK, credit="uniform")(questions))[::5]
    assert uniform.all()
    rules = ("uniform", "score", "std", "sum_mean")
    return {rule: column(replace(RISK, credit=rule)(questions))[::5] / uniform * float(given["A"]) for rule in rules}


@EXAMPLES.by("baseline by the quantile curve at three levels, and the risk-seeking tail")
def upper(example: Example) -> Found:
    """The tail has a weight so large that the rest does not count."""
    given = example.values
    seeking = replace(RISK, tail="upper", omega=1e9, scale="none", credit="uniform")
    return {"upper_tail": with_tracked(seeking, float(given["q"][0]), float(given["q"][2]), given["s"])}


@EXAMPLES.by(ALONE)
def alone(example: Example) -> Found:
    return {"advantage": column(RISK(batch([float(example.values["s"])])))}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    draw_advantages = column(replace(RISK, credit="uniform")(batch([*example.values["s"], np.nan])))
    assert not draw_advantages[-1]
    return {"advantage": np.array([*draw_advantages[:-1], np.nan])}


@EXAMPLES.by(OFF_POLICY)
def off_policy(example: Example) -> Found:
    given = example.values
    old = -np.ones(len(given["ratio"]))
    return {"loss": one_rollout(SINGLE, old, old + np.log(given["ratio"]), given["A"])["loss"]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
