"""Worked examples of the paper of vision_zero, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from case_files import Case, run
from common_examples import given_advantages, single_tokens
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core import recipes
from agentrl_core.loss import KL, Policy
from agentrl_core.reward import OutcomeScore

EXAMPLES = PaperExamples("vision_zero")
RECIPE = recipes.VISION_ZERO
PHASE = RECIPE.reward.by
VOTES, CLUES = (
    RECIPE.replace(reward=RECIPE.reward.of[at], advantage=RECIPE.advantage.of[at], weight=RECIPE.weight.of[at])
    for at in (0, 1)
)
"""The recipe in each of its phases."""
LOSSES = given_advantages(RECIPE)
CODE = given_advantages(RECIPE.replace(loss=Policy("step_mean", kl=KL(0.04))))
"""The recipe with the loss of the public code."""


def game(rewards: Sequence[float], *, vote: bool, votes: Sequence[float] | None = None, first: int = 0) -> list[Any]:
    """Return the members of a game of a spy and civilians, each of one step: a clue, or a vote.

    Args:
        rewards: rewards of the players, the spy first; for a vote, the reward of its step. An unknown reward is nan.
        vote: whether they vote.
        votes: how many each got; None: none.
        first: place of the game's first member.
    """
    members: list[dict[str, Any]] = []
    for place, reward in enumerate(rewards):
        facts = {"spy": float(place == 0), "suspected": 0.0 if votes is None else float(votes[place])}
        known = {} if np.isnan(reward) else {"reward": float(reward)}
        members.append(
            {
                "path": "1 | 3",
                "agent": place,
                "facts": facts,
                "steps": [{"facts": {"vote": float(vote)}, **known}],
                **known,
                **({"episode": first} if place else {}),
            }
        )
    return members


def reference(members: Sequence[Any]) -> dict[str, Any]:
    return {"token": {"reference_logprob": [-1.0] * len(members)}}


@EXAMPLES.by("votes of eight judge answers")
def clues(example: Example) -> Found:
    given = example.values
    votes = [float(given["spy"]), *given["civilians"]]
    members = game([0.0] * 4, vote=False, votes=votes)
    plain = CLUES.replace(reward=replace(CLUES.reward, coefficient=1.0, suspicion=0.0))
    clue_scores, potential = (
        computed(recipe, ["draw.score"], members=members, columns=reference(members))["draw.score"]
        for recipe in (CLUES, plain)
    )
    return {"potential": -potential[:1], "spy": clue_scores[:1], "civilians": clue_scores[1:], "sum": clue_scores.sum()}


def against_roles(games: Sequence[Sequence[Sequence[float]]], decay: float | None = None) -> list[Value]:
    """Return advantages of the players of games in successive iterations, against the averages of their roles."""
    recipe = CLUES.replace(reward=OutcomeScore())
    if decay is not None:
        recipe = recipe.replace(advantage=replace(recipe.advantage, decay=decay))
    iterations = []
    for together in games:
        members: list[Any] = []
        for rewards in together:
            members += game(rewards, vote=False, first=len(members))
        iterations.append({"members": members, "columns": reference(members), "expect": {"draw.advantage": 0}})
    return [result["draw.advantage"] for result in run(Case("", recipe, iterations, {}, {}), recipe, "sequence", 0)]


def players(values: Mapping[str, Value], place: int) -> list[float]:
    """Return rewards of a game: the spy, one civilian, and two others that give the civilians the example's mean."""
    player = float(values["player"][place]) if "player" in values else float(values["civ"][place])
    others = (3.0 * float(values["civ"][place]) - player) / 2.0
    return [float(values["spy"][place]), player, others, others]


@EXAMPLES.by("baselines over two games")
def baselines(example: Example) -> Found:
    given = example.values
    rewards = np.array([players(given, place) for place in range(2)])
    role_advantages = np.array(against_roles([[rewards[0]], [rewards[1]]], decay=0.9))
    return {
        "baseline_spy": (rewards - role_advantages)[:, 0],
        "baseline_civilian": (rewards - role_advantages)[:, 1],
        "advantage_spy": role_advantages[:, 0],
        "advantage_player": role_advantages[:, 1],
        "sum_of_each_game": role_advantages.sum(axis=1),
    }


@EXAMPLES.by("baselines over two games by the paper")
def paper_baselines(example: Example) -> Found:
    game_advantages = against_roles([[players(example.values, place)] for place in range(2)])
    return {
        "advantage_spy": [each[0] for each in game_advantages],
        "advantage_player": [each[1] for each in game_advantages],
    }


@EXAMPLES.by("two devices with a game each")
def devices(example: Example) -> Found:
    given = example.values
    rewards = np.array([players(given, place) for place in range(2)])
    role_advantages = against_roles([list(rewards)], decay=0.9)[0].reshape(2, 4)
    return {
        "baseline_spy": (rewards - role_advantages)[0, 0],
        "baseline_civilian": (rewards - role_advantages)[0, 1],
        "advantage_spy": role_advantages[:, 0],
        "civilian_mean_advantage": role_advantages[:, 1:].mean(axis=1),
    }


def decided(rewards: Value) -> Value:
    """Return advantages of the votes of a game; nan for an unscored vote."""
    members = game(rewards, vote=True)
    advantages = computed(VOTES, ["step.advantage"], members=members, columns=reference(members))["step.advantage"]
    assert not advantages[np.isnan(rewards)].any()
    return np.where(np.isnan(rewards), np.nan, advantages)


@EXAMPLES.by("decisions of a game")
def decisions(example: Example) -> Found:
    return {"advantage": decided(example.values["r"])}


@EXAMPLES.by("decisions of a round by the paper")
def paper_decisions(example: Example) -> Found:
    return {"advantage": decided(example.values["r"])}


@EXAMPLES.by("equal decisions, and one alone")
def equal(example: Example) -> Found:
    return {"equal": decided(example.values["equal"])}


@EXAMPLES.by("a decision without a result (convention)")
def unscored(example: Example) -> Found:
    return {"advantage": decided(np.append(example.values["r"], np.nan))}


@EXAMPLES.by("loss in the clue phase")
def loss(example: Example) -> Found:
    given = example.values
    new = {name: np.log(given[f"u_{name}"]) - 1.0 for name in "12"}
    apart = {
        name: np.concatenate(
            [
                single_tokens(
                    CODE,
                    np.full(1, -1.0),
                    logprob[[at]],
                    np.full(1, given[f"A_{name}"]),
                    reference_logprob=(logprob + given[f"d_{name}"])[[at]],
                )["loss"]
                for at in range(len(logprob))
            ]
        )
        for name, logprob in new.items()
    }
    together = computed(
        CODE,
        ["loss"],
        members=answers([3, 1], [float(given["A_1"]), float(given["A_2"])]),
        columns={
            "token": {"reference_logprob": np.concatenate([new[name] + given[f"d_{name}"] for name in "12"]).tolist()}
        },
        policy={"logprob": np.concatenate([new["1"], new["2"]]).tolist()},
    )
    return {"first": apart["1"], "second": apart["2"], "loss": together["loss"]}


@EXAMPLES.by("both objectives at the first step")
def objectives(example: Example) -> Found:
    given = example.values
    new = given["log_pi"]
    result = single_tokens(LOSSES, new, new, given["A"], reference_logprob=given["log_ref"])
    divergence = result["loss"] + (given["A"] * new).mean()
    np.testing.assert_allclose(divergence, example.expect["divergence"], rtol=1e-4)
    return {"slope_in_log_likelihood": result["gradient.logprob"], "divergence": divergence}


@EXAMPLES.by("utterances of three tokens and of one, by the paper")
def utterances(example: Example) -> Found:
    given = example.values
    new, reference = (np.concatenate([given[f"{name}_{end}"] for end in "12"]) for name in ("log_pi", "log_ref"))
    members = [
        {"path": "1 | 3 ~ 9 | 4 5", "reward": float(given["A"][0]), "logprobs": given["old_1"].tolist()},
        {"path": "1 | 3", "reward": float(given["A"][1])},
    ]
    result = computed(
        LOSSES,
        ["loss", "gradient.logprob"],
        members=members,
        columns={"token": {"reference_logprob": reference.tolist()}},
        policy={"logprob": new.tolist()},
    )
    one, other = np.split(result["gradient.logprob"], [3])
    return {"loss": result["loss"], "slope_of_the_tokens_of_1": one, "slope_of_the_token_of_2": other}


@EXAMPLES.by("a round of seven runs changes the stage, or not")
def stages(example: Example) -> Found:
    given = example.values
    states = [
        PHASE.move({"value": clue, "average": right, "unsure": unsure, "age": int(age) - 1}, *now)
        for clue, right, unsure, age, *now in zip(
            *(given[name] for name in ("clue", "acc", "na", "age", "acc_t", "na_t")), strict=True
        )
    ]
    assert PHASE.reads == ("right_votes", "unsure_votes")
    return {
        "accuracy": np.array([state["average"] for state in states]),
        "abstention": np.array([state["unsure"] for state in states]),
        "clue_stage": np.array([PHASE.value(state) for state in states]),
    }


def test_the_phases_follow_one_controller() -> None:
    assert RECIPE.reward.by == RECIPE.advantage.by == RECIPE.weight.by


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
