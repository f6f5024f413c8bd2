"""RL-PLUS: tokens of an unknown expert are weighted by a mixture of behaviours (arXiv:2508.00222).

Demonstrations come without log-probs, and their plain importance ratio would explode. The ratio to a mixture of the old
policy and a guess of the expert stays bounded, and tokens that the policy already finds likely count less. The old
policy's p of a demonstration is that of the policy before the update, recomputed for all tokens, as the public code
does (`old_log_probs` of the whole batch). The guess is uniform over the vocabulary, of 151 936 tokens for the paper's
models; the public code has 1 in its place, `MixtureExpert(prior=1.0)`, where a token can weigh 2/(1.5 p_old + 0.5) p at
most. Statistics of the advantages over the policy's own draws alone: give the expert's no score, and a column as their
advantage.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, ratio of external tokens: `MixtureExpert`, with the paper's 1/|V|; `MixtureExpert(prior=1.0)` is the code's.
    - C2, exploration-based advantage: `MixtureExpert(exploration=0.5)`.
    - C3, loss: `Policy(clip=None, aggregate="constant", constant=8192.0)`, mean over rollouts.
    - C4, group of the script: an option, `GroupRelative(scale="none")`.
    - C5, entropy bonus: `Policy(entropy=0.001)`.
    - N1, normalised advantage: `GroupRelative`, over external and own answers; std of n - 1.
    - N2, objective: `Policy`, with one mean over the answers of both kinds.

Differs:
    - Std: the paper divides by it, by notes; the script does not. Here as in the paper.
    - Two expectations: own and external answers have one each in the paper; one mean in the code and here.
    - Rows: the code does not divide by their number, so that its loss grows with a micro-batch; here it is divided.
    - Entropy: a mean over tokens in the code; here its sum has the denominators of the policy loss.
    - Group of one: by the option with own rows alone it keeps its reward; 0 here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option, token
from agentrl_core.loss import ClipBounds, Policy, Surrogate, Tokens, torch
from agentrl_core.weight import ExpertMask

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MixtureExpert(Surrogate):
    """Weighs tokens that an unknown expert wrote by multiple importance sampling.

        f = g = sg(1 - p)^exploration p / ((1 - share) p_old + share q)

    Bounded by 1 / share where q >= p, however unlikely the old policy finds the token; not clipped. RL-PLUS takes
    (p_old + p_expert) / 2 with p_expert = (p_old + u) / 2: share 0.25, q = u.

    Args:
        share: of q in the mixture; between 0 and 1.
        prior: q, one probability for every token: 1 / |V| in the paper (here of the models it trains), 1 in its code;
            above 0, at most 1. None: q is the stream `other_logprob`, the log-probs of a second behaviour policy.
        exploration: at least 0; tokens that are likely already count less.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import ClipBounds, Tokens
        >>> from agentrl_core.recipes.rl_plus import MixtureExpert
        >>> streams = {"weight_kl": torch.ones(1), "old_logprob": torch.tensor([0.2]).log()}
        >>> tokens = Tokens(torch.tensor([0.4]).log(), None, streams)
        >>> expert = MixtureExpert(prior=1.0, exploration=0.0)  # 0.4 / (0.75 0.2 + 0.25)
        >>> expert(tokens, torch.zeros(1), ClipBounds())[0].tolist()
        [1.0]
    """

    share: float = option(0.25, above=0, below=1)
    prior: float | None = option(1 / 151_936, above=0, at_most=1)
    exploration: float = option(0.5, at_least=0)

    def own_reads(self) -> Iterable[str | Column]:
        """Old log-probs, and those of the second behaviour."""
        return ("old_logprob",) if self.prior is not None else ("old_logprob", token("other_logprob"))

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """The importance weight of each expert token, under a mixture that the expert is part of."""
        old = tokens.stream("old_logprob")
        other = tokens.stream("other_logprob") if self.prior is None else torch.full_like(old, math.log(self.prior))
        behaviour = torch.logaddexp(old + math.log1p(-self.share), other + math.log(self.share))
        ratio = tokens.limited(tokens.logprob - behaviour).exp()
        factor = ratio * (1.0 - tokens.logprob.detach().exp()).clamp(min=0.0).pow(self.exploration)
        return factor, factor


RL_PLUS = Recipe(
    name="rl_plus",
    source="arXiv:2508.00222",
    advantage=GroupRelative(),
    weight=ExpertMask(),
    loss=Policy(clip=None, expert=MixtureExpert(), aggregate="constant", constant=8192.0, entropy=0.001),
    old_logprob="recomputed",
    minibatches=2,
)
