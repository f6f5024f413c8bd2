"""MDPO, mirror descent policy optimisation: replace the clip by a rising penalty on divergence from the last policy.

    L = - mean over tokens of r A + (1 / t_k) KL(p || p_k),   r = p / p_k,   t_k = 1 - (k - 1) / K
    A: GAE with gamma 0.99, lambda 0.95, (A - mean) / std over all tokens
    L_critic = mean of 1/2 max((V - R)^2, (V_k + clip(V - V_k, +-c) - R)^2),   c = 0.2 t_k

K is the number of batches of the run, here 1000; for another K, `mirror(K)` returns the weight 1 / t_k. Each batch gets
ten optimizer steps, each from the result of the one before; at the first step all divergences are 0. p_k sampled the
tokens, so the divergence of a token is r log r - r + 1, whose mean under p_k is KL(p || p_k).

Equations:
    Read: the authors' code and its README; the paper's text was not read.

    - C1, advantages: `Gae`, then `GroupRelative` over the batch, std of n.
    - C2, on-policy objective: `Policy(clip=None, drift=MirrorDivergence(mirror(1000)))`.
    - C3, step size of the mirror: `mirror`; the user chooses the step size of Adam.
    - C4, Tsallis variant: left out: an option of the code that is off by default and is not a divergence.
    - C5, value loss: `Value(clip=...)` of the model `critic`, with a clip range that falls like t_k.
    - C6, off-policy loss of the policy: left out: it differentiates a critic by a continuous action; tokens have no
      such gradient.
    - C7, off-policy targets: left out: they are targets of the critic of C6.

Differs:
    - KL: to p_k, as in the code, but estimated from the sampled tokens; the code computes it from the distributions.
    - Value loss: half of the code's loss; the critic has its own optimizer.
    - Batch of one token: the advantage is not a number in the code; 0 here.

Source: arXiv:2005.09814. Needs: the critic's token columns `value` and `old_value`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe, Schedule
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.loss import KL, Policy, Train, Value

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.loss import Tokens


@dataclass(frozen=True)
class MirrorDivergence(KL):
    """Estimate KL(p || q) on tokens that q sampled, with r = p / q: r log r - r + 1, at least 0.

    The estimators of `KL` estimate KL(p || q) if p sampled the tokens, and KL(q || p) if q did. The gradient is log r
    times the gradient of r. Estimator and direction are fixed.

    Args:
        coefficient: weight of the divergence, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.mdpo import MirrorDivergence
        >>> old, new = torch.tensor([0.5, 0.5]), torch.tensor([0.8, 0.2])
        >>> streams = {"weight_kl": torch.ones(2), "old_logprob": old.log()}
        >>> terms = MirrorDivergence(1.0).divergence(Tokens(new.log(), None, streams), "old_logprob")
        >>> (old * terms).sum().item(), (new * (new / old).log()).sum().item()
        (0.193, 0.193)
    """

    def check_options(self) -> None:
        """Require the default estimator and direction, since this term has only one form."""
        defaults = {"kind": "k3", "direction": "reverse", "straight_through": False}
        changed = [name for name, value in defaults.items() if getattr(self, name) != value]
        self.require(
            not changed,
            next(iter(changed), "kind"),
            "this term is always r log r - r + 1; leave kind, direction and straight_through at their defaults",
        )

    def estimate(self, tokens: Tokens, away: Tensor) -> Tensor:  # noqa: ARG002 - other kinds read them
        """Return the estimate of each token from log q - log p, `[N]`, with gradient."""
        return (-away).exp() * (away.expm1() - away)


def mirror(batches: int) -> Schedule:
    """Return a schedule of 1 / t_k, t_k = 1 - (k - 1) / K, for iterations k from 0.

    Args:
        batches: K, the number of batches of the run, at least 1.

    Example:
        >>> from agentrl_core.recipes.mdpo import mirror
        >>> [mirror(100).at(iteration) for iteration in (1, 51, 91)]
        [1.0, 2.0, 10.0]
    """
    return Schedule(batches / (batches + 1), batches, iterations=batches, kind="inverse")


_BATCHES = 1000

MDPO = Recipe(
    name="mdpo",
    source="arXiv:2005.09814",
    advantage=(
        Gae(gamma=0.99, lam=0.95),
        GroupRelative(column="advantage", level="token", group_by="batch", ddof=0, eps=0.0),
    ),
    loss=(
        Train(
            Value("token_mean", clip=Schedule(0.2 * (1 + 1 / _BATCHES), 0.2 / _BATCHES, iterations=_BATCHES)),
            model="critic",
            epochs=5,
            minibatches=16,
        ),
        Policy(clip=None, drift=MirrorDivergence(mirror(_BATCHES))),
    ),
    epochs=10,
)
