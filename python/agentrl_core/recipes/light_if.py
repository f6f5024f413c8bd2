"""Light-IF: give an entropy bonus to tokens whose update reduces the entropy, after imitating surprising tokens.

With outcome rewards alone, instruction following collapses into habits. The warm start imitates only the tokens that
the model finds surprising. In reinforcement learning, the entropy bonus goes to the tokens of a response whose
updates would reduce the entropy most. The reward is the share of constraints that a response meets, which the
environment computes. Source: arXiv:2508.03178. Needs: the reference model.

Equations:
    Read: the public code and README, notes; not the paper's text.

    - C1, covariance of a token: `CovarianceEntropy`, over the rows of an optimizer step.
    - C2, coefficient: `CovarianceEntropy(softmax_coefficient=10, at_most=5)`.
    - C3, entropy of TEA-RL: `CovarianceEntropy(coefficient=1)`.
    - C4, policy loss of the scripts: `Policy(clip=Clip(1.0, 1.0, dual=10.0), kl=KL(0.001))`, `GroupRelative`; the
      advantage of a group of one is its reward.
    - C5, entropy-preserving supervised loss: `Imitation` with `TopTokens("surprise", 0.2)`, at stage `warm_start`.
    - N1, dense reward: `OutcomeScore`; the environment returns the share as reward.

Differs:
    - Zero-RL stage: left out: it is a separate run before the warm start, with rewards for length and correctness.
    - Released code: it overwrites the sum with the entropy, so this term has no effect there; here it has one.
    - Gradient of the coefficient: the code keeps the gradient through the token's own log-prob; here c is detached.
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
    """Reward entropy at tokens of a response whose advantage and log-prob co-vary.

        L = - coefficient * sum of w c H,   c = clip(softmax_coefficient softmax over the response of cov, 0, at_most)

    with cov = (A - mean A) (log p - mean log p) and means over the given rows; c is detached.

    Args:
        coefficient: factor of the bonus, above 0.
        softmax_coefficient: factor of the softmax, above 0.
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
        """Return minus the entropy bonus; tokens are weighted by a softmax of covariances within their response."""
        all_tokens = tokens.segments("all")
        centred_advantage, centred_logprob = (
            each - all_tokens.spread(all_tokens.mean(each)) for each in (tokens.advantage, tokens.logprob.detach())
        )
        covariance = torch.where(tokens.trained, centred_advantage * centred_logprob, 0.0)
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
