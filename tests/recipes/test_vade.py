"""VADE: the two decay rates, and the choice of tasks."""

from __future__ import annotations

import numpy as np
from pools import Story, pool, selection_request

from agentrl_core import _core
from agentrl_core.recipes import VADE
from agentrl_core.select import Beta, ComposedSelector


def test_evidence_fades_at_two_speeds() -> None:
    # 4 of 8 in iteration 0; not visited in 1 and 2: 4 * 0.99^2; visited in 3 with 8 of 8: 0.5 * 4 * 0.99^2 + 8 and
    # 0.5 * 4 * 0.99^2. Read for iteration 5: one iteration (4) without a visit. One more of each is the even prior.
    track, story = VADE.select.track, Story()  # type: ignore[attr-defined]
    assert isinstance(track, Beta)
    state = track.next(track.initial_state(), story.visits(0, {2: [1.0, 0.0] * 4}))
    state = track.next(state, story.visits(3, {2: [1.0] * 8}))
    alpha, beta = track.evidence(state, story.candidates([2, 9], 5))
    remaining = 0.5 * 4 * 0.99**2
    np.testing.assert_allclose(alpha, [1 + 0.99 * (remaining + 8), 1.0])
    np.testing.assert_allclose(beta, [1 + 0.99 * remaining, 1.0])


def test_the_most_informative_draws_are_chosen() -> None:
    select = VADE.select
    assert isinstance(select, ComposedSelector)
    chosen = select.choose(pool(60), {}, selection_request(4), 5).rows
    seed = _core.rng.structural_seed
    draws = _core.select.beta_draws(np.ones(60), np.ones(60), np.arange(60), seed(seed(5, 0), 2))
    assert chosen.tolist() == np.argsort(-draws * (1 - draws) ** 2)[:4].tolist()
