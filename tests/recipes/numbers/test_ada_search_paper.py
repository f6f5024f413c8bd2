"""Worked examples of the paper of ada_search, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from common_examples import advantages, given_advantages, one_rollout
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from riddles import RIGHT, WRONG, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.recipes.ada_search import DECIDES, KNOWS, SEARCHES, Decision, SearchWhereNeeded
from agentrl_core.rollout import Independent

EXAMPLES = PaperExamples("ada_search")
LOSSES = given_advantages(recipes.ADA_SEARCH.replace(rollout=Independent()))
WORDS = {1.0: "I know it", 0.0: "I search"}


@EXAMPLES.by("stage 1: one question in two modes")
def modes(example: Example) -> Found:
    members = [
        {**member, "facts": {"manner": manner}}
        for name, manner in (("parametric", KNOWS), ("search", SEARCHES))
        for member in answers([1] * len(example.values[name]), example.values[name].tolist())
    ]
    draw_advantages = computed(recipes.ADA_SEARCH, ["draw.advantage"], members=members)["draw.advantage"]
    one, other = np.split(draw_advantages, [len(example.values["parametric"])])
    return {"parametric": one, "search": other}


@EXAMPLES.by("labels of four questions")
def labels(example: Example) -> Found:
    """Each question has a given number of right samples; then all of them decide that knowledge suffices."""

    def label(right: int) -> float:
        remaining_replies = [RIGHT] * right

        def speak(context: str, request: Request) -> str:
            del request
            if "know or search" in context:
                return WORDS[1.0]
            return remaining_replies.pop() if remaining_replies else WRONG

        run = solve(SearchWhereNeeded(first_stage=0), speak)
        assert sum(row.role == "helper" for row in run.rows) == example.values["K"]
        [reward] = set(run.fact("reward"))
        return reward

    return {"label_sufficient": np.array([label(int(right)) for right in example.values["passed"]])}


@EXAMPLES.by("stage 2: decisions of a group")
def decisions(example: Example) -> Found:
    decision = Decision("manner", DECIDES, label="know" if example.values["label"] else "search")
    rewards = [decision.reward(WORDS[choice]) for choice in example.values["decision"].tolist()]
    group_advantages = advantages(recipes.ADA_SEARCH, rewards, facts={"manner": DECIDES})
    return {"reward": np.array(rewards), "advantage": group_advantages[0]}


@EXAMPLES.by("a rollout with search")
def searched(example: Example) -> Found:
    given = example.values
    losses = [
        one_rollout(LOSSES, given["old"], new, given["A"], given["mask"])["loss"]
        for new in (given["old"], given["second"])
    ]
    return {"first_loss": losses[0], "second_loss": losses[1]}


@EXAMPLES.by("a group of one and a rollout without score (convention)")
def few(example: Example) -> Found:
    scored, alone = [*example.values["R"], np.nan], example.values["one"]
    advantage, one = advantages(recipes.ADA_SEARCH, scored, alone, facts={"manner": DECIDES})
    return {"advantage": advantage, "centred_reward_of_one": one}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
