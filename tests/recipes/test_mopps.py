"""MoPPS: compare the posterior and the choice with the paper's two formulas."""

from __future__ import annotations

import numpy as np
from pools import Story, pool, selection_request

from agentrl_core import _core
from agentrl_core.recipes import MOPPS
from agentrl_core.select import Beta, ComposedSelector, NearTarget


def test_the_posterior_follows_the_formula() -> None:
    # alpha <- 0.5 alpha + 0.5 * 1 + 8 s, twice from alpha = beta = 1: with s = 3/4, then 1/4:
    # alpha: 0.5 + 0.5 + 6 = 7, then 3.5 + 0.5 + 2 = 6; beta: 0.5 + 0.5 + 2 = 3, then 1.5 + 0.5 + 6 = 8.
    track, story = Beta(decay=0.5), Story()
    state = track.next(track.initial_state(), story.visits(0, {3: [1.0] * 6 + [0.0] * 2}))
    state = track.next(state, story.visits(5, {3: [1.0] * 2 + [0.0] * 6}))
    alpha, beta = track.evidence(state, story.candidates([3], 6))
    assert (alpha.tolist(), beta.tolist()) == ([6.0], [8.0])


def test_the_smallest_squares_among_sixteen_each_are_chosen() -> None:
    select, of = MOPPS.select, pool(400)
    assert isinstance(select, ComposedSelector)
    chosen = select.choose(of, {}, selection_request(3), 11).rows
    seed = _core.rng.structural_seed
    key = seed(11, 0)
    candidates = _core.select.drawn(400, 48, seed(key, 0), np.zeros(0, np.int64))
    guesses = _core.select.beta_draws(np.ones(48), np.ones(48), candidates, seed(key, 2))
    best = candidates[np.argsort((guesses - 0.5) ** 2)[:3]]
    assert chosen.tolist() == best.tolist()


def test_the_band_of_the_variant() -> None:
    scores = NearTarget(0.5, width=0.2)(np.array([0.25, 0.3, 0.5, 0.7, 0.8]))
    np.testing.assert_allclose(scores, [-0.05, 0.0, 0.0, 0.0, -0.1], atol=1e-12)
