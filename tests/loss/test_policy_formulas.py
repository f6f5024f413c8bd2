"""loss.Policy against plain transcriptions of the published formulas, one token at a time: values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from cases import Case, Objective, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss


def soft_upper(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return 1.2 / r.detach() * r * a if a > 0 and r > 1.2 else ppo(r, a, 0.8, 1.2, 3.0)


def soft_both(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return 0.8 / r.detach() * r * a if a < 0 and r < 0.8 else soft_upper(case, ratio, logprob, t) if a > 0 else r * a


def aspo(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    """Gradients as the paper states them; r / sg(r) is 1."""
    a, r = case.advantage[t], ratio[t]
    if (a > 0 and r > 1.3) or (a < 0 and r < 0.8):
        return 0.0 * r
    weight = 1.0 / r.item() if a > 0 else r.item()
    moving = (logprob[t] - logprob[t].detach()).exp()
    return a * min(weight, 1.1 if a > 0 else 1.2) * moving


def spo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return a * r - a.abs() * (r - 1.0) ** 2 / (2.0 * 0.2)


def cpgd(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, d = case.advantage[t], logprob[t] - case.old_logprob[t]
    clipped = torch.minimum(d * a, d.clamp(math.log(0.8), math.log(1.2)) * a)
    return clipped - 0.01 * min(math.expm1(d.item()), 0.2) * logprob[t]


def sapo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    tau = 1.0 if a > 0 else 1.05
    return a * torch.sigmoid(tau * (r - 1.0)) * 4.0 / tau


def reinforce(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    return case.advantage[t] * logprob[t]


def cispo(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    return case.advantage[t] * min(max(ratio[t].item(), 0.9), 1.1) * logprob[t]


def truncated(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    return case.advantage[t] * min(ratio[t].item(), 1.0) * logprob[t]


def topr(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a = case.advantage[t]
    return a * logprob[t] if a > 0 else truncated(case, ratio, logprob, t)


def rapid(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    return case.advantage[t] * min(ratio[t].item(), 1.2) * logprob[t]


def one_sided(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return a * logprob[t] if (a >= 0 and r <= 1.2) or (a <= 0 and r >= 0.8) else 0.0 * logprob[t]


def two_sided(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    return case.advantage[t] * logprob[t] if 0.8 <= ratio[t] <= 1.2 else 0.0 * logprob[t]


def ring(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    kept = 0.8 <= r <= 1.2 or (a >= 0 and r <= 0.7) or (a <= 0 and r >= 1.4)
    return a * logprob[t] if kept else 0.0 * logprob[t]


def dppo_tv(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, moved = case.advantage[t], logprob[t].exp() - case.old_logprob[t].exp()
    kept = moved <= 0.05 if a > 0 else moved >= -0.04
    return a * min(ratio[t].item(), 1.3) * logprob[t] * float(kept)


def dppo_kl(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, p, q = case.advantage[t], logprob[t].exp().item(), case.old_logprob[t].exp().item()
    divergence = q * math.log(q / p) + (1 - q) * math.log((1 - q + 1e-8) / (1 - p + 1e-8))
    kept = divergence <= 0.02 or (p <= q if a > 0 else p >= q)
    return a * min(ratio[t].item(), 1.3) * logprob[t] * float(kept)


def decoupled(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    """AReaL: w min(u A, clip(u) A) with u = p / p_proximal, w = p_proximal / p_behaviour."""
    u = (logprob[t] - case.proximal_logprob[t]).exp()
    return (case.proximal_logprob[t] - case.old_logprob[t]).exp() * ppo(u, case.advantage[t], 0.8, 1.25, 1.3)


def remix(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    center = (case.proximal_logprob[t] - case.old_logprob[t]).exp()
    return ppo(ratio[t], case.advantage[t], max(center - 0.2, torch.tensor(0.0)), center + 0.25)


def mini_rl(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, u = case.advantage[t], (logprob[t] - case.proximal_logprob[t]).exp()
    dropped = (a > 0 and u > 1.27) or (a < 0 and u < 0.8)
    return a * min(ratio[t].item(), 1.5) * logprob[t] * (0.0 if dropped else 1.0)


def loop(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    return ppo(ratio[t], case.advantage[t], 1 / 1.1, 1.1)


def token_bounds(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    return ppo(ratio[t], case.advantage[t], 1 - case.clip_low[t], 1 + case.clip_high[t])


def dcpo(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    q = case.old_logprob[t].exp().item()
    lower = 0.5 + 0.5 * math.sqrt(max(0.0, 1 - 4 * 0.16 / q))
    upper = min(0.5 + 0.5 * math.sqrt(1 + 4 * 0.2 / q), 1.6)
    return ppo(ratio[t], case.advantage[t], lower, upper, 10.0)


def shaped(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    p = logprob[t].exp()
    return case.advantage[t] * p / (p + 0.1) if case.expert[t] else ppo(ratio[t], case.advantage[t], 0.8, 1.2)


def rl_plus(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    """2 p / (p_old + p_beta) with p_beta = (p_old + u) / 2, and A (1 - p)^gamma on external tokens."""
    p, old = logprob[t].exp(), case.old_logprob[t].exp()
    if not case.expert[t]:
        return ratio[t] * case.advantage[t]
    return 2 * p / (old + 0.5 * (old + 0.01)) * case.advantage[t] * (1 - p.item()) ** 0.5


def mixture(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    behaviour = 0.6 * case.old_logprob[t].exp() + 0.4 * case.other_logprob[t].exp()
    return logprob[t].exp() / behaviour * case.advantage[t]


def kimi(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    """Also DRO, REP and mirror descent."""
    return case.advantage[t] * logprob[t] - 0.1 / 2 * (logprob[t] - case.old_logprob[t]) ** 2


def penalised(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    """PPO's penalty KL(old || new), as exp(d) - 1 - d on samples of old."""
    d = logprob[t] - case.old_logprob[t]
    return ratio[t] * case.advantage[t] - 0.5 * (d.exp() - 1 - d)


R = loss.Reinforce
FORMULAS: dict[str, tuple[loss.Policy, Objective]] = {
    "aepo": (loss.Policy(clip=loss.Clip(dual=3.0), surrogate=loss.Clipped("upper")), soft_upper),
    "soft clip": (loss.Policy(surrogate=loss.Clipped("both")), soft_both),
    "aspo": (loss.Policy(clip=loss.Clip(0.2, 0.3), surrogate=loss.Flipped(1.1, 1.2)), aspo),
    "spo": (loss.Policy(surrogate=loss.Quadratic()), spo),
    "cpgd": (loss.Policy(surrogate=loss.LogClipped(), drift=loss.KL(0.01, direction="forward", cap=0.2)), cpgd),
    "sapo": (loss.Policy(clip=None, surrogate=loss.Smooth()), sapo),
    "reinforce": (loss.Policy(clip=None, surrogate=R()), reinforce),
    "cispo": (loss.Policy(clip=loss.Clip(0.1, 0.1), surrogate=R("clamped", "clamped")), cispo),
    "tis": (loss.Policy(clip=loss.Clip(1.0, 0.0), surrogate=R("clamped", "clamped")), truncated),
    "topr": (loss.Policy(clip=loss.Clip(1.0, 0.0), surrogate=R("one", "clamped")), topr),
    "rapid": (loss.Policy(clip=None, surrogate=R("ratio", "ratio", cap=1.2)), rapid),
    "rec one-sided": (loss.Policy(surrogate=R(), gate=loss.InBounds()), one_sided),
    "rec two-sided": (loss.Policy(surrogate=R(), gate=loss.InBounds("two_sided")), two_sided),
    "rec ring": (loss.Policy(surrogate=R(), gate=loss.InBounds("ring", 0.7, 1.4)), ring),
    "dppo tv": (
        loss.Policy(clip=None, surrogate=R("ratio", "ratio", 1.3), gate=loss.Divergence("tv", 0.04, 0.05)),
        dppo_tv,
    ),
    "dppo kl": (
        loss.Policy(clip=None, surrogate=R("ratio", "ratio", 1.3), gate=loss.Divergence("kl", 0.02, 0.02)),
        dppo_kl,
    ),
    "decoupled": (loss.Policy(clip=loss.Clip(0.2, 0.25, 1.3, center="proximal")), decoupled),
    "remix": (loss.Policy(clip=loss.Clip(0.2, 0.25, center="proximal_shift")), remix),
    "minirl": (
        loss.Policy(
            clip=loss.Clip(0.2, 0.27, center="proximal"), surrogate=R("ratio", "ratio", cap=1.5), gate=loss.InBounds()
        ),
        mini_rl,
    ),
    "loop": (loss.Policy(clip=loss.Clip(0.1, 0.1, scale="reciprocal")), loop),
    "per token": (loss.Policy(clip=loss.TokenClip()), token_bounds),
    "dcpo": (loss.Policy(clip=loss.ProbabilityClip(limit=1.6)), dcpo),
    "icpo": (loss.Policy(expert=loss.Expert()), shaped),
    "rl-plus": (loss.Policy(clip=None, expert=loss.Expert("mixture", prior=0.01, exploration=0.5)), rl_plus),
    "mixture": (loss.Policy(clip=None, ratio=loss.Mixture(0.4, None)), mixture),
    "kimi": (loss.Policy(clip=None, surrogate=R(), drift=loss.KL(0.1, "k2")), kimi),
    "ppo penalty": (loss.Policy(clip=None, drift=loss.KL(0.5, direction="forward")), penalised),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FORMULAS)
def test_one_token_at_a_time(name: str, seed: int) -> None:
    policy, objective = FORMULAS[name]
    case = Case.random(seed)
    agree(policy, case, transcribed(case, objective))
