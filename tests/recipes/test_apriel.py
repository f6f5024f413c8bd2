"""Apriel-Reasoner: shares of domains follow the kept rollouts."""

from __future__ import annotations

import numpy as np
from pools import pool, selection_request

from agentrl_core.recipes import APRIEL
from agentrl_core.select import ComposedSelector


def test_a_domain_that_was_kept_less_is_chosen_more() -> None:
    # Targets 1/2 each, realised 0.8 and 0.2: corrections 0.625 and 2.5, so shares 0.2 and 0.8 of ten groups.
    select, of = APRIEL.select, pool(60, ("code", "math"))
    assert isinstance(select, ComposedSelector)
    state = select.initial_state() | {"quota": {"realised": {"code": 0.8, "math": 0.2}}}
    assert (select.choose(of, state, selection_request(10), 1).rows % 2).sum() == 8
    assert (select.choose(of, {}, selection_request(10), 1).rows % 2).sum() == 5
    # Hardly any rollout of math was kept: at most ten times its share, 5 against 0.5 * 0.5025.
    state = select.initial_state() | {"quota": {"realised": {"code": 0.995, "math": 0.005}}}
    expected = 10 * 5.0 / (5.0 + 0.5 * 0.5 / 0.995)
    assert (select.choose(of, state, selection_request(10), 1).rows % 2).sum() == np.round(expected) == 10
