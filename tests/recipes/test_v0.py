"""V0: numbers of rollouts by a predicted success rate."""

from __future__ import annotations

import numpy as np
from pools import pool, selection_request

from agentrl_core.recipes import V0
from agentrl_core.select import ComposedSelector


def test_rollout_counts_follow_the_predicted_success_rates() -> None:
    select, of = V0.select, pool(3)
    assert isinstance(select, ComposedSelector)
    of.column("attempts")
    of._columns["prior"] = np.array([0.5, 0.9, 0.02])
    chosen = select.choose(of, {}, selection_request(3, group_size=6), 1)
    rates = of.column("prior")[chosen.rows]
    # Two of each, then twelve: each of p = 1/2 gains more than 1/2, the third of another less than 0.2.
    assert dict(zip(rates.tolist(), chosen.counts.tolist(), strict=True)) == {0.5: 14, 0.9: 2, 0.02: 2}
