"""Light-IF: an entropy bonus for tokens whose update reduces the entropy, after a special warm start.

Following instructions collapses into habits when only the outcome pays. The warm start imitates just the tokens that
the model finds surprising; in reinforcement learning the entropy bonus goes to the tokens of a response whose updates
would reduce the entropy most. The reward is the share of constraints that a response meets, which its environment
knows. Source: arXiv:2508.03178. Needs: the model reference.

Equations:
    Read: the public code and README, notes; not the paper's text.

    - C1, covariance of a token: `CovarianceEntropy`, over the rows of an optimizer step.
    - C2, coefficient: `CovarianceEntropy(softmax_coefficient=10, at_most=5)`.
    - C3, entropy of TEA-RL: `CovarianceEntropy(coefficient=1)`.
    - C4, policy loss of the scripts: `Policy(clip=Clip(1.0, 1.0, dual=10.0), kl=KL(0.001))`, `GroupRelative`; a group
      of one keeps its reward.
    - C5, entropy-preserving supervised loss: `Imitation` with `TopTokens("surprise", 0.2)`, at stage `warm_start`.
    - N1, dense reward: `OutcomeScore`; the environment pays the share.

Differs:
    - Zero-RL stage: left out: a run of its own before the warm start, with rewards for length and correctness.
    - Released code: it overwrites the sum with the entropy, which has no effect there; here it has.
    - Gradient of the coefficient: the code leaves that through the token's own log-prob; here c is detached.
    - Means of the covariance: over a micro-batch in the code, over an optimizer step here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option
from agentrl_core.loss import (
    ADVANTAGES,
    KL,
    Clip,
    EntropyTerm,
    Imitation,
    Policy,
    Tokens,
    TopTokens,
    Train,
    Unit,
    torch,
)
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class CovarianceEntropy(EntropyTerm):
    """Rewards entropy where advantage and log-prob co-vary within a response.

        L = - coefficient * sum of w c H,   c = clip(softmax_coefficient softmax over the response of cov, 0, at_most)

    with cov = (A - mean A) (log p - mean log p) over the rows given; c is detached.

    Args:
        coefficient: above 0.
        softmax_coefficient: of the softmax, above 0.
        at_most: upper bound of c, above 0.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.light_if import CovarianceEntropy
        >>> streams = {"weight_kl": torch.ones(2), "weight_entropy": torch.ones(2), "sequence": torch.tensor([0, 0])}
        >>> streams |= {"advantage_positive": torch.tensor([1.0, 0.0]), "advantage_negative": torch.tensor([0.0, -1.0])}
        >>> tokens = Tokens(torch.tensor([-1.0, -3.0]), torch.ones(2), streams)  # both co-vary by 1: c = 10 / 2
        >>> CovarianceEntropy(0.1)(tokens).item()
        -1.0
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_entropy", "sequence")
    over: ClassVar[Unit] = "update"

    coefficient: float = option(1.0, above=0)
    softmax_coefficient: float = option(10.0, above=0)
    at_most: float = option(5.0, above=0)

    def __call__(self, tokens: Tokens) -> Tensor:
        """The entropy bonus, with each token weighed by the covariance of its advantage and log-prob."""
        every = tokens.segments("all")
        gain, sure = (each - every.spread(every.mean(each)) for each in (tokens.advantage, tokens.logprob.detach()))
        covariance = torch.where(tokens.trained, gain * sure, 0.0)
        softmax = tokens.segments("sequence").log_softmax(covariance).exp()
        share = (self.softmax_coefficient * softmax).clamp(max=self.at_most)
        return -self.coefficient * (tokens.stream("weight_entropy") * share * tokens.entropy).sum()


LIGHT_IF = Recipe(
    name="light_if",
    source="arXiv:2508.03178",
    reward=OutcomeScore(),
    advantage=GroupRelative(singleton="raw"),
    loss=(
        Train(
            Imitation("token_mean", mask=TopTokens("surprise", 0.2, kind="floor", denominator="kept")),
            stage="warm_start",
        ),
        Policy(clip=Clip(1.0, 1.0, dual=10.0), kl=KL(0.001), entropy=CovarianceEntropy()),
    ),
    minibatches=4,
)
