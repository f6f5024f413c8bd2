"""Compare the mask and the clip range of a second moment with loops."""

from __future__ import annotations

import math

import pytest
from cases import Case

from agentrl_core import loss
from agentrl_core.loss import ClipBounds
from agentrl_core.recipes.m2po import SecondMomentClip, SecondMomentMask


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.05, 0.2, 10.0])
def test_second_moment_mask(budget: float) -> None:
    case = Case.random(6, spread=0.5)
    away = case.logprob - case.old_logprob
    harmful = [
        t for t, (d, a) in enumerate(zip(away, case.advantage, strict=True)) if (a > 0 and d > 0) or (a < 0 and d < 0)
    ]
    while harmful and sum(float(away[t]) ** 2 for t in harmful) / len(harmful) > budget:
        harmful.remove(max(harmful, key=lambda t: float(away[t]) ** 2))
    for sign, factor in zip((1, -1), SecondMomentMask(budget)(case.tokens(), away, ClipBounds()), strict=True):
        pushed = [t for t, a in enumerate(case.advantage) if sign * a > 0 and sign * away[t] > 0]
        assert [t for t in pushed if factor[t]] == [t for t in pushed if t in harmful]
        assert all(factor[t] for t in range(len(away)) if t not in pushed and sign * case.advantage[t] > 0)


@pytest.mark.parametrize("budget", [1e-6, 0.01, 0.05, 0.2, 10.0])
def test_second_moment_clip(budget: float) -> None:
    case = Case.random(6, spread=0.5)
    away = case.logprob - case.old_logprob
    harmful = sorted(
        float(d) ** 2 for d, a in zip(away, case.advantage, strict=True) if (a > 0 and d > 0) or (a < 0 and d < 0)
    )
    if sum(harmful) / len(harmful) <= budget:
        lower, upper = 0.0, math.inf
    else:
        fitting = [k for k in harmful if sum(min(d, k) for d in harmful) <= budget * len(harmful)]
        width = math.sqrt(max(fitting, default=0.0))
        lower, upper = math.exp(-width), math.exp(width)
    bounds = SecondMomentClip(budget)(case.tokens(), away)
    assert (bounds.lower.item(), bounds.upper.item()) == pytest.approx((lower, upper))
    wide = SecondMomentClip(budget, narrowest=loss.Clip(0.3, 0.5))(case.tokens(), away)
    assert (wide.lower.item(), wide.upper.item()) == pytest.approx((min(lower, 0.7), max(upper, 1.5)))
