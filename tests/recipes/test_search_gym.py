"""SearchGym-RL: when questions of several hops are added."""

from __future__ import annotations

import numpy as np
from pools import Story, pool, selection_request

import agentrl_core as arl
from agentrl_core.component import IterationRecord
from agentrl_core.recipes import SEARCH_GYM
from agentrl_core.select import ComposedSelector, Curriculum


def test_the_second_stage_begins() -> None:
    select, of = SEARCH_GYM.select, pool(40)
    assert isinstance(select, ComposedSelector)
    assert isinstance(select.stage, Curriculum)
    of.column("attempts")
    of._columns["hops"] = hops = np.arange(40) % 4 + 1
    story, state, empty, rates = Story(), select.initial_state(), arl.Forest().freeze(), []
    assert (hops[select.choose(of, state, selection_request(8), 2).rows] == 1).all()
    for iteration, solved in enumerate([5, 7, 8]):  # 0.8 is above 0.7
        visits = story.visits(iteration, {0: [1.0] * solved + [0.0] * (10 - solved)})
        rates.append(state["stage"]["rate"])
        state["stage"] = select.stage.next(state["stage"], visits, IterationRecord(iteration, empty, pool=of))
    assert rates[0] is None
    np.testing.assert_allclose(rates[1:], [0.5, 0.7])
    assert state["stage"] == {"stage": 1, "begun": 3, "rate": None}
    assert set(hops[select.choose(of, state, selection_request(40), 2).rows].tolist()) == {1, 2, 3, 4}
