"""Worked examples of the paper of oer, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import rollouts
from common_examples import path_of
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import Batch, recipes
from agentrl_core.component import IterationRecord, State
from agentrl_core.replay import Memory, Mix

EXAMPLES = PaperExamples("oer")
RECIPE = recipes.OER


def memory() -> Memory:
    (mix,) = RECIPE.chain("replay")
    assert isinstance(mix, Mix)
    return mix.memory


def credited(batch: Batch, logprobs: Sequence[Value]) -> Batch:
    """Return a batch with these log-probs of its rollouts under the current policy."""
    return RECIPE.credit(batch.with_columns("token", recomputed_logprob=np.concatenate(logprobs)))


def items(logprobs: Sequence[Value], rewards: Sequence[float] | None = None, masks: Sequence[Value] = ()) -> Batch:
    """Return rollouts with these current log-probs, sampled by another policy; tokens of a tool have mask 0."""
    masks = [*masks, *(np.ones(len(each)) for each in logprobs[len(masks) :])]
    rewards = [1.0] * len(masks) if rewards is None else rewards
    members: list[dict[str, Any]] = [
        {"group": str(place), "path": path_of(mask), **({} if np.isnan(reward) else {"reward": float(reward)})}
        for place, (mask, reward) in enumerate(zip(masks, rewards, strict=True))
    ]
    own_logprobs = [each[mask > 0] for each, mask in zip(logprobs, masks, strict=True)]
    return credited(rollouts(members, 0), own_logprobs)


def scores(batch: Batch) -> Value:
    return np.log(batch.column("likelihood", "draw"))


def remembered(batch: Batch, state: State | None = None) -> State:
    return memory().next(memory().initial_state() if state is None else state, IterationRecord.of(batch))


def drawn_again(state: State, count: int, item_count: int) -> Value:
    """Return which items of the batch are drawn again, as 1 for each."""
    drawable = memory().drawable(state, 9)
    chosen = np.zeros(item_count)
    chosen[drawable.trajectory_id[memory().draw(drawable, count, key=0)[0]]] = 1
    return chosen


@EXAMPLES.by("scores of stored episodes with tool tokens and unequal lengths")
def unequal(example: Example) -> Found:
    given = example.values
    return {"score": scores(items([given[name] for name in "abc"], masks=[given["m"]]))}


@EXAMPLES.by("the two best, and two temperatures")
def best(example: Example) -> Found:
    logprobs = example.values["s"]
    return {"kept": drawn_again(remembered(items([np.array([each]) for each in logprobs])), 2, len(logprobs))}


@EXAMPLES.by("a likely failure is filtered out before the ranking")
def filtered(example: Example) -> Found:
    logprobs, rewards = example.values["s"], example.values["r"].tolist()
    state = remembered(items([np.array([each]) for each in logprobs], rewards))
    return {"passes": drawn_again(state, len(logprobs), len(logprobs)), "kept": drawn_again(state, 2, len(logprobs))}


@EXAMPLES.by("the same items after the policy has moved")
def moved(example: Example) -> Found:
    """The likelier item is drawn again; its score and place are then those under the new policy."""
    given = example.values
    before = items([given["old_a"], given["old_b"]])
    state = remembered(before)
    assert drawn_again(state, 1, 2).tolist() == [1, 0]
    ids = before.column("trajectory_id", "draw")
    again = rollouts(
        [{"group": each, "path": f"1 | 3*{count}", "reward": 1} for each, count in (("0", 2), ("1", 3))], 0
    )
    again = again.with_draws(ids, source="replay", iteration=1).select_draws([2, 3])
    after = credited(again, [given["new_a"], given["new_b"]])
    assert drawn_again(remembered(after, state), 1, 2).tolist() == [0, 1]
    return {"score_before": scores(before), "score_after": scores(after)}


@EXAMPLES.by("a buffer with one item")
def alone(example: Example) -> Found:
    return {"probability": drawn_again(remembered(items([example.values["s"]])), 1, 1)}


def test_an_item_without_a_reward_does_not_come_back() -> None:
    state = remembered(items([np.array([-0.8]), np.array([-0.5]), np.array([-0.1])], [1.0, 1.0, np.nan]))
    assert drawn_again(state, 3, 3).tolist() == [1, 1, 0]


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
