"""Worked examples of the paper of mopps, computed by the recipe."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import CommonExamples, advantages
from paper_files import Example
from paper_numbers import Found, PaperExamples
from pools import Story

from agentrl_core import recipes
from agentrl_core.select import Beta, NearTarget

EXAMPLES = PaperExamples("mopps")
GROUPS, UNSCORED = "groups of five and of three", "one rollout of four has no score (convention)"
CommonExamples(EXAMPLES, recipes.MOPPS, but=[GROUPS, UNSCORED])
SELECT = recipes.MOPPS.select


def evidence(track: Beta, *visits: dict[int, list[float]]) -> tuple[Value, Value]:
    """Return both parameters of the posterior of each task after these visits, one after another."""
    story, state = Story(), track.initial_state()
    for iteration, outcomes in enumerate(visits):
        state = track.next(state, story.visits(iteration, outcomes))
    return track.evidence(state, story.candidates(sorted(visits[0]), len(visits)))


def chosen(score: NearTarget, guesses: Value, count: int) -> Value:
    """Return which candidates are chosen if the posterior is sampled at these rates."""
    places, _ = SELECT.sample.choose(score(guesses), np.arange(len(guesses)), count, 0)
    return np.isin(np.arange(len(guesses)), places)


@EXAMPLES.by("posterior after two visits")
def posterior(example: Example) -> Found:
    visits = [
        {0: [1.0] * right + [0.0] * (8 - right)}
        for right in (int(8 * example.values["s1"]), int(8 * example.values["s2"]))
    ]
    assert float(example.values["a"]) == SELECT.track.prior_success
    assert float(example.values["b"]) == SELECT.track.prior_failure
    alpha, beta = evidence(replace(SELECT.track, decay=0.5), *visits)
    undecayed = evidence(SELECT.track, *visits)
    return {
        "alpha": alpha,
        "beta": beta,
        "mean": alpha / (alpha + beta),
        "alpha_without_decay": undecayed[0],
        "beta_without_decay": undecayed[1],
    }


@EXAMPLES.by("two of six candidates")
def by_distance(example: Example) -> Found:
    assert SELECT.sample.posterior
    assert SELECT.sample.among == 16
    guesses = example.values["p"]
    return {"distance": SELECT.score(guesses) ** 2, "keep": chosen(SELECT.score, guesses, 2)}


@EXAMPLES.by("three of six candidates by the band, which holds two")
def by_band(example: Example) -> Found:
    score = NearTarget(SELECT.score.target, width=0.2)
    return {"distance": -score(example.values["p"]), "keep": chosen(score, example.values["p"], 3)}


@EXAMPLES.by("warm start")
def warm_start(example: Example) -> Found:
    """Each earlier result counts three times, like three visits with the same results."""
    count = int(example.values["n"])
    results = {
        place: [1.0] * right + [0.0] * (count - right)
        for place, right in enumerate(example.values["right"].astype(int).tolist())
    }
    alpha, beta = evidence(SELECT.track, results, results, results)
    return {"alpha": alpha, "beta": beta, "mean": alpha / (alpha + beta)}


@EXAMPLES.by(GROUPS)
def groups(example: Example) -> Found:
    first, second = example.values["R"], example.values["S"]
    one, other = advantages(recipes.MOPPS, first, second)
    alpha, beta = evidence(SELECT.track, {0: first.tolist(), 1: second.tolist()})
    return {"advantage_a": one, "advantage_b": other, "alpha": alpha, "beta": beta}


@EXAMPLES.by(UNSCORED)
def unscored(example: Example) -> Found:
    rewards = [*example.values["R"].tolist(), np.nan]
    alpha, beta = evidence(SELECT.track, {0: rewards})
    return {"advantage": advantages(recipes.MOPPS, rewards)[0], "alpha": alpha, "beta": beta}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
