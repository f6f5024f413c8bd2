"""V0: numbers of rollouts by a predicted success rate."""

from __future__ import annotations

from itertools import product

import numpy as np
from pools import pool, wanted

from agentrl_core.recipes import V0
from agentrl_core.select import ComposedSelector


def test_no_numbers_give_more_mixed_groups() -> None:
    select, of = V0.select, pool(3)
    assert isinstance(select, ComposedSelector)
    of.column("attempts")
    of._columns["prior"] = np.array([0.5, 0.9, 0.02])
    chosen = select.choose(of, {}, wanted(3, group_size=6), 1)
    rates = of.column("prior")[chosen.rows]

    def mixed(counts: tuple[int, ...]) -> float:
        return sum(float(1 - p**n - (1 - p) ** n) for p, n in zip(rates, counts, strict=True))

    assert chosen.counts.sum() == 18
    every = [counts for counts in product(range(2, 15), repeat=3) if sum(counts) == 18]
    assert len(every) > 50
    assert mixed(tuple(chosen.counts.tolist())) >= max(map(mixed, every)) - 1e-12
    # The fifth rollout of p = 1/2 gains 0.0625, the sixth 0.03125; the eleventh of 0.9 gains 0.1 * 0.9^10 = 0.0349, and
    # the third of 0.02 gains 0.0196.
    assert dict(zip(rates.tolist(), chosen.counts.tolist(), strict=True)) == {0.5: 5, 0.9: 11, 0.02: 2}
