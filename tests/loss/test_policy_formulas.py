"""Compare loss.Policy with plain transcriptions of the published formulas, per token: values and gradients."""

from __future__ import annotations

import pytest
import torch
from cases import Case, Objective, agree, ppo, transcribed
from torch import Tensor

from agentrl_core import loss
from agentrl_core.loss.surrogate import TokenClip


def soft_upper(case: Case, ratio: Tensor, _: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return 1.2 / r.detach() * r * a if a > 0 and r > 1.2 else ppo(r, a, 0.8, 1.2, 3.0)


def soft_both(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    a, r = case.advantage[t], ratio[t]
    return 0.8 / r.detach() * r * a if a < 0 and r < 0.8 else soft_upper(case, ratio, logprob, t) if a > 0 else r * a


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
    inside = 0.8 <= r <= 1.2 or (a >= 0 and r <= 0.7) or (a <= 0 and r >= 1.4)
    return a * logprob[t] if inside else 0.0 * logprob[t]


def decoupled(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    """AReaL: w min(u A, clip(u) A) with u = p / p_proximal, w = p_proximal / p_behaviour."""
    u = (logprob[t] - case.proximal_logprob[t]).exp()
    return (case.proximal_logprob[t] - case.old_logprob[t]).exp() * ppo(u, case.advantage[t], 0.8, 1.25, 1.3)


def interpolated(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    """AReaL, log-linear: alpha between the sampling and the current policy, v_prox = v - 1; no token with w > 1.2."""
    version, newest = int(case.policy_version[t]), 3
    alpha = (newest - 1 - version) / (newest - version) if 0 <= version < newest else 0.0
    proximal = case.old_logprob[t] + min(max(alpha, 0.0), 1.0) * (logprob[t].detach() - case.old_logprob[t])
    w = (proximal - case.old_logprob[t]).exp()
    return 0.0 * logprob[t] if w > 1.2 else w * ppo((logprob[t] - proximal).exp(), case.advantage[t], 0.8, 1.25, 1.3)


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


def shaped(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    p = logprob[t].exp()
    return case.advantage[t] * p / (p + 0.1) if case.expert[t] else ppo(ratio[t], case.advantage[t], 0.8, 1.2)


def kimi(case: Case, _: Tensor, logprob: Tensor, t: int) -> Tensor:
    """The formula also covers DRO, REP and mirror descent."""
    return case.advantage[t] * logprob[t] - 0.1 / 2 * (logprob[t] - case.old_logprob[t]) ** 2


def penalised(case: Case, ratio: Tensor, logprob: Tensor, t: int) -> Tensor:
    """PPO's penalty KL(old || new), as exp(d) - 1 - d on samples of old."""
    d = logprob[t] - case.old_logprob[t]
    return ratio[t] * case.advantage[t] - 0.5 * (d.exp() - 1 - d)


R = loss.Reinforce
FORMULAS: dict[str, tuple[loss.Policy, Objective]] = {
    "aepo": (loss.Policy(clip=loss.Clip(dual=3.0), surrogate=loss.Clipped("upper")), soft_upper),
    "soft clip": (loss.Policy(surrogate=loss.Clipped("both")), soft_both),
    "reinforce": (loss.Policy(clip=None, surrogate=R()), reinforce),
    "cispo": (loss.Policy(clip=loss.Clip(0.1, 0.1), surrogate=R("clamped", "clamped")), cispo),
    "tis": (loss.Policy(clip=loss.Clip(1.0, 0.0), surrogate=R("clamped", "clamped")), truncated),
    "topr": (loss.Policy(clip=loss.Clip(1.0, 0.0), surrogate=R("one", "clamped")), topr),
    "rapid": (loss.Policy(clip=None, surrogate=R("ratio", "ratio", at_most=1.2)), rapid),
    "rec one-sided": (loss.Policy(surrogate=R(), mask=loss.InBounds()), one_sided),
    "rec two-sided": (loss.Policy(surrogate=R(), mask=loss.InBounds("two_sided")), two_sided),
    "rec ring": (loss.Policy(surrogate=R(), mask=loss.InBounds("ring", 0.7, 1.4)), ring),
    "decoupled": (loss.Policy(clip=loss.Clip(0.2, 0.25, 1.3, center="proximal")), decoupled),
    "interpolated": (
        loss.Policy(clip=loss.Clip(0.2, 0.25, 1.3, center="interpolated", center_at_most=1.2)),
        interpolated,
    ),
    "remix": (loss.Policy(clip=loss.Clip(0.2, 0.25, center="proximal_shift")), remix),
    "minirl": (
        loss.Policy(
            clip=loss.Clip(0.2, 0.27, center="proximal"),
            surrogate=R("ratio", "ratio", at_most=1.5),
            mask=loss.InBounds(),
        ),
        mini_rl,
    ),
    "loop": (loss.Policy(clip=loss.Clip(0.1, 0.1, scale="reciprocal")), loop),
    "per token": (loss.Policy(clip=TokenClip()), token_bounds),
    "icpo": (loss.Policy(expert=loss.Expert()), shaped),
    "kimi": (loss.Policy(clip=None, surrogate=R(), drift=loss.KL(0.1, "k2")), kimi),
    "ppo penalty": (loss.Policy(clip=None, drift=loss.KL(0.5, direction="forward")), penalised),
}


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", FORMULAS)
def test_one_token_at_a_time(name: str, seed: int) -> None:
    policy, objective = FORMULAS[name]
    case = Case.random(seed)
    agree(policy, case, transcribed(case, objective))
