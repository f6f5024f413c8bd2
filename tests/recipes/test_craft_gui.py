"""CRAFT-GUI: buckets, shares of earlier buckets, and the rule that ends a stage."""

from __future__ import annotations

import numpy as np
from pools import Story, pool, selection_request

import agentrl_core as arl
from agentrl_core.component import IterationRecord
from agentrl_core.recipes import CRAFT_GUI
from agentrl_core.select import ComposedSelector, Curriculum


def test_stages_by_hand() -> None:
    select, of = CRAFT_GUI.select, pool(90)
    assert isinstance(select, ComposedSelector)
    assert isinstance(select.stage, Curriculum)
    of.column("attempts")
    of._columns["reference_steps"] = np.arange(90) % 12 + 1
    steps = of.column("reference_steps")
    chosen = select.choose(of, {}, selection_request(20), 4).rows
    assert (steps[chosen] <= 3).all()
    story, state, stages = Story(), select.initial_state(), []
    empty = arl.Forest().freeze()
    for iteration, outcomes in enumerate([[1, 1, 1, 1, 0], [1] * 9 + [0]]):  # 0.8 is not enough, 0.9 is
        visits = story.visits(iteration, {0: [float(value) for value in outcomes]})
        state["stage"] = select.stage.next(state["stage"], visits, IterationRecord(iteration, empty, pool=of))
        stages.append(state["stage"]["stage"])
    assert stages == [0, 1]
    chosen = select.choose(of, state, selection_request(20, iteration=2), 4).rows
    # 0.85 and 0.15 of twenty rollouts.
    assert ((steps[chosen] > 3) & (steps[chosen] <= 8)).sum() == 17
    assert (steps[chosen] <= 3).sum() == 3
