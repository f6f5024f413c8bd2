"""The mixture of behaviours, one token at a time."""

from __future__ import annotations

import pytest
import torch
from cases import Case, Objective, agree, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.recipes.rl_plus import MixtureExpert


def rl_plus(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    """Return 2 p / (p_old + p_beta) with p_beta = (p_old + u) / 2, and A (1 - p)^gamma on external tokens."""
    p, old = logprob[t].exp(), case.old_logprob[t].exp()
    if not case.expert[t]:
        return ratio[t] * case.advantage[t]
    return 2 * p / (old + 0.5 * (old + 0.01)) * case.advantage[t] * (1 - p.item()) ** 0.5


def two_behaviours(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    behaviour = 0.6 * case.old_logprob[t].exp() + 0.4 * case.other_logprob[t].exp()
    return (logprob[t].exp() / behaviour if case.expert[t] else ratio[t]) * case.advantage[t]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("expert", "objective"),
    [(MixtureExpert(prior=0.01), rl_plus), (MixtureExpert(0.4, None, exploration=0.0), two_behaviours)],
)
def test_one_token_at_a_time(expert: MixtureExpert, objective: Objective, seed: int) -> None:
    case = Case.random(seed)
    agree(loss.Policy(clip=None, expert=expert), case, transcribed(case, objective))


def test_likely_tokens_count_less_once() -> None:
    """p = 0.75, p_old = q = 0.75: the ratio is 1, and (1 - p)^0.5 is 0.5, not its square."""
    streams = {"weight_kl": torch.ones(1), "old_logprob": torch.tensor([0.75]).log()}
    tokens = loss.Tokens(torch.tensor([0.75]).log(), None, streams)
    factor, _ = MixtureExpert(prior=0.75)(tokens, torch.zeros(1), loss.ClipBounds())
    assert factor.item() == pytest.approx(0.5)
