"""Worked examples of the paper of ghpo, computed by the recipe."""

from __future__ import annotations

import numpy as np
import pytest
from arithmetic import Value
from common_examples import advantages, given_advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed
from riddles import RIGHT, WRONG, Riddles, solve

from agentrl_core import recipes
from agentrl_core.engine import Request

EXAMPLES = PaperExamples("ghpo")
LOSSES = given_advantages(recipes.GHPO)


def rungs(helps: int, characters: int = 170) -> tuple[list[int], list[bool]]:
    """Return the hint lengths of a task whose group is solved at a number of characters, and the dropped groups."""

    def speak(context: str, request: Request) -> str:
        del request
        return RIGHT if "s" * helps in context else WRONG

    rows = solve(recipes.GHPO, speak, world=Riddles(("s" * characters,)), group_size=4).rows
    assert len(rows) % 4 == 0
    hint_lengths = [row.prompt.rpartition("\n")[2].count("s") for row in rows[::4]]
    return hint_lengths[1:], [not row.drawn for row in rows[::4]]


@EXAMPLES.by("a ladder: the group is solved with half of the solution")
def ladder(example: Example) -> Found:
    given = example.values
    lengths, hard = rungs(85, int(given["characters"]))
    exact = given["characters"] * np.array(recipes.GHPO.rollout.shares)
    assert lengths == np.floor(exact[:2]).tolist()
    return {
        "rung_is_hard": hard,
        "characters_before_rounding_half_to_even": exact,
        "advantage": advantages(recipes.GHPO, given["acc_50"] + 0.5 * given["format_50"])[0],
        "advantage_that_grpo_would_have": advantages(recipes.GHPO, given["acc_plain"] + 0.5 * given["format_plain"])[0],
    }


@EXAMPLES.by("still wrong at three quarters")
def still_wrong(example: Example) -> Found:
    lengths, dropped = rungs(170)
    assert (len(lengths), dropped) == (3, [True, True, True, False])
    group_advantages = advantages(recipes.GHPO, example.values["acc_75"] + 0.5 * example.values["format_75"])
    return {"advantage_of_the_last_rung": group_advantages[0]}


@EXAMPLES.by("one rollout of four has no score (convention)")
def unscored(example: Example) -> Found:
    return {"advantage_if_it_were_the_last_rung": advantages(recipes.GHPO, [*example.values["R"], np.nan])[0]}


@EXAMPLES.by("hint tokens are prompt tokens")
def hinted(example: Example) -> Found:
    own_tokens, advantage_values = example.values["mask"] > 0, example.values["A"]
    members = [
        {"path": "1 9 | 3*2", "reward": float(advantage_values[1])},
        {"path": "1 | 3", "reward": float(advantage_values[3])},
    ]

    def loss(now: Value) -> Value:
        return computed(LOSSES, ["loss"], members=members, policy={"logprob": now[own_tokens].tolist()})["loss"]

    return {"first_loss": loss(example.values["first"]), "second_loss": loss(example.values["second"])}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
