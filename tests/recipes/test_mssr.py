"""MSSR: the weight of a task, and the loss of its evidence."""

from __future__ import annotations

import math

import numpy as np
from pools import Story, pool, selection_request

from agentrl_core.select import Beta, ComposedSelector, OutcomeVariance, ProportionalSampler


def test_weights_by_hand() -> None:
    """Test the option that the page names."""
    # One rollout a visit: 1, then 0: S = 0.9175, F = 1: v = 0.478488; always solved: v = 1; never tried: 0.5.
    select = ComposedSelector(
        track=Beta(0.0, 0.0, decay=0.9175, unseen=0.5),
        score=OutcomeVariance(power=1.0, floor=1e-6),
        sample=ProportionalSampler(),
    )
    story = Story()
    state = select.initial_state()
    track = select.track.next(state["track"], story.visits(0, {0: [1.0], 1: [1.0]}))
    track = select.track.next(track, story.visits(1, {0: [0.0], 1: [1.0]}))
    state |= {"rows": np.array(story.tracked), "track": track}
    chosen = select.choose(pool(3), state, selection_request(3, iteration=2), 3)
    v = 0.9175 / 1.9175
    weights = np.array([math.sqrt(v * (1 - v)) + 1e-6, 1e-6, 0.5 + 1e-6])
    assert chosen.probabilities is not None
    np.testing.assert_allclose(chosen.probabilities[np.argsort(chosen.rows)], weights / weights.sum())
