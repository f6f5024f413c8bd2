"""TeachMyAgent: probabilities by absolute learning progress."""

from __future__ import annotations

import numpy as np
from pools import Story, pool, selection_request

from agentrl_core.recipes import TEACH_MY_AGENT
from agentrl_core.select import ComposedSelector


def test_probabilities_by_hand() -> None:
    # Returns 0 then 0.5; 1 then 0.5; 0.25 twice; one visit; none: ALP 0.5, 0.5, 0, 0, 0. With eps 0.2 and N = 5:
    # 0.04 + 0.4 for the first two, 0.04 for the others.
    select, story = TEACH_MY_AGENT.select, Story()
    assert isinstance(select, ComposedSelector)
    first = {0: [0.0, 0.0], 1: [1.0, 1.0], 2: [0.5, 0.0], 3: [1.0]}
    state = select.initial_state()
    track = select.track.next(state["track"], story.visits(0, first))
    track = select.track.next(track, story.visits(1, {0: [1.0, 0.0], 1: [0.0, 1.0], 2: [0.0, 0.5]}))
    state |= {"rows": np.array(story.tracked), "track": track}
    chosen = select.choose(pool(5), state, selection_request(5, iteration=2), 3)
    assert chosen.probabilities is not None
    np.testing.assert_allclose(chosen.probabilities[np.argsort(chosen.rows)], [0.44, 0.44, 0.04, 0.04, 0.04])
