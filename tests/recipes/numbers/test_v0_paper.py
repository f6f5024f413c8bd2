"""Worked examples of the paper of v0, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.select import ComposedSelector, GreedyAllocator

EXAMPLES = PaperExamples("v0")
assert isinstance(recipes.V0.select, ComposedSelector)
assert isinstance(recipes.V0.select.count, GreedyAllocator)
COUNT = recipes.V0.select.count


def utility(counts: Value, rates: Value) -> Value:
    return counts * (1 - rates) * (1 - (1 - rates) ** (counts - 1))


@EXAMPLES.by("ten rollouts of three prompts")
def ten(example: Example) -> Found:
    return {"counts": COUNT.counts({}, {"estimate": example.values["p"]}, total=10)}


@EXAMPLES.by("a prompt that is hard gains more and more")
def eight(example: Example) -> Found:
    return {"counts": COUNT.counts({}, {"estimate": example.values["p"]}, total=8)}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


@pytest.mark.parametrize("seed", range(20))
def test_the_choice_is_greedy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rates = rng.integers(0, 21, size=rng.integers(1, 9)) / 20
    low, high = int(rng.integers(1, 4)), int(rng.integers(4, 12))
    total = int(rng.integers(len(rates) * low, len(rates) * (high + 1) + 1))
    counts = np.full(len(rates), low)
    for _ in range(total - counts.sum()):
        gains = np.round(utility(counts + 1.0, rates) - utility(counts, rates), 12)
        gains[counts == high] = 0.0
        counts[np.argmax(gains)] += gains.max() > 0.0
    allocated = GreedyAllocator("failures", low, high).counts({}, {"estimate": rates}, total)
    assert allocated.tolist() == counts.tolist()


def test_few_rollouts_and_bad_input() -> None:
    assert COUNT.counts({}, {"estimate": np.array([0.5, 0.1, 0.9])}, total=4).tolist() == [2, 1, 1]
    with pytest.raises(InvalidInputError):
        COUNT.counts({}, {"estimate": np.array([0.5, 0.1])}, total=1)
