"""Worked examples of the paper of icpi, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from imagining import first_turn, world_questions
from paper_files import Example
from paper_numbers import Found, PaperExamples

from agentrl_core import recipes
from agentrl_core.recipes.icpi import Imagine, _Transition

EXAMPLES = PaperExamples("icpi")
ICPI = recipes.ICPI.rollout
assert isinstance(ICPI, Imagine)


def imagined(rewards: Value, *, ends: bool = True) -> list[str]:
    """Return answers of the world model, interleaved with those of the policy, for an imagined episode."""
    last = len(rewards) - 1
    replies = [
        text
        for place, reward in enumerate(rewards.tolist())
        for text in ("yes" if ends and place == last else "no", f"{reward:g}", f"s{place}", "a")
    ]
    return replies[: len(replies) - 2 * int(ends)]


@EXAMPLES.by("three actions from one state")
def three(example: Example) -> Found:
    """The third action's episode continues past the depth."""
    given = example.values
    program = replace(ICPI, actions=("a", "b", "c"), horizon=len(given["c"]))
    values, chosen = first_turn(
        program, [*imagined(given["a"]), *imagined(given["b"]), *imagined(given["c"], ends=False)[:-2]]
    )
    return {"value": values, "chosen": [float(action == chosen) for action in program.actions]}


@EXAMPLES.by("a rollout whose third state is malformed")
def malformed(example: Example) -> Found:
    """At the third try the episode ends: a fourth answer, which could be read, is not requested."""
    answers = [*imagined(example.values["r"], ends=False)[:-2], *[""] * 3, "s", "a", "yes", "9"]
    return {"value": first_turn(replace(ICPI, actions=("a",)), answers)[0]}


def episode(*rewards: float) -> list[_Transition]:
    last = len(rewards) - 1
    return [_Transition(f"{place}", "a", reward, place == last, "") for place, reward in enumerate(rewards)]


@EXAMPLES.by("balanced termination examples")
def balanced(example: Example) -> Found:
    ended, more = (int(example.values[name]) for name in ("ended", "going_on"))
    transitions = [_Transition(f"{place}", "a", 0.0, place < ended, "") for place in range(ended + more)]
    examples = ICPI.balanced(transitions, lambda each: each.done)
    rare = [each for each in examples if each.done]
    return {
        "examples_of_each_class": len(rare),
        "total": len(examples),
        "mean_copies_of_the_rare": len(rare) / len(set(rare)),
    }


@EXAMPLES.by("probability of the model")
def coin(example: Example) -> Found:
    return {"probability": [ICPI.chance_of_model(int(count)) for count in example.values["n"]]}


def in_window(program: Imagine, episodes: Sequence[list[_Transition]]) -> Value:
    """Return which of the episodes are shown."""
    remembered = program.window(episodes)
    return np.array([float(any(each is one for one in remembered)) for each in episodes])


@EXAMPLES.by("the window and its old trajectories")
def window(example: Example) -> Found:
    of_code = replace(ICPI, success_above=0.0)
    return {"kept": in_window(of_code, [episode(won) for won in example.values["success"].tolist()])}


@EXAMPLES.by("every recent trajectory is shown")
def recent(example: Example) -> Found:
    return {"kept": in_window(ICPI, [episode(won) for won in example.values["success"].tolist()])}


@EXAMPLES.by("balanced reward examples among those that go on")
def balanced_rewards(example: Example) -> Found:
    """The prompt of the world model after it has predicted that the episode continues."""
    counts = {name: int(example.values[name]) for name in ("zero", "one", "ended")}
    steps = [
        _Transition("s", "a", float(name == "one"), name == "ended", "")
        for name, count in counts.items()
        for _ in range(count)
    ]
    questions = world_questions(replace(ICPI, actions=("a",)), steps, ["no", "0", ""])
    [lines] = [text.splitlines()[:-1] for text in questions if text.endswith("reward:")]
    zero = [line for line in lines if line.endswith("reward: 0")]
    assert len(zero) == len(lines) - len(zero)
    return {"examples_of_each_class": len(zero), "total": len(lines)}


@EXAMPLES.by("threshold")
def threshold(example: Example) -> Found:
    both = [example.values[name].tolist() for name in ("r_a", "r_b")]
    return {
        "return_a": ICPI.discounted(both[0]),
        "return_b": ICPI.discounted(both[1]),
        "success": in_window(replace(ICPI, success_above=0.0), [episode(*rewards) for rewards in both]),
    }


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
