"""RL-PLUS: weigh tokens of an unknown expert by their ratio to a mixture of policies (arXiv:2508.00222).

Demonstrations have no log-probs, and their plain importance ratio would explode. The ratio to a mixture of the old
policy and a guess of the expert stays bounded, and tokens that the policy already finds likely count less. The old
policy's p of a demonstration is recomputed with the policy before the update, for all tokens, as in the public code
(`old_log_probs` of the whole batch). The guess of the expert is uniform over the vocabulary, 151 936 tokens for the
paper's models. The public code uses probability 1 instead, `MixtureExpert(prior=1.0)`, with which the weight of a token
is at most 2/(1.5 p_old + 0.5) p. For advantage statistics over the policy's own draws alone, give the expert's draws no
score, and a column with their advantages.

Equations:
    Read: the public code, notes, and the abstract.

    - C1, ratio of external tokens: `MixtureExpert`, with the paper's 1/|V|; `MixtureExpert(prior=1.0)` is the code's
      form.
    - C2, exploration-based advantage: `MixtureExpert(exploration=0.5)`.
    - C3, loss: `Policy(clip=None, aggregate="constant", constant=8192.0)`, mean over rollouts.
    - C4, group of the script: an option, `GroupRelative(scale="none")`.
    - C5, entropy bonus: `Policy(entropy=0.001)`.
    - N1, normalised advantage: `GroupRelative`, over external and own answers; std with divisor n - 1.
    - N2, objective: `Policy`, with one mean over the answers of both kinds.

Differs:
    - Std: the paper divides by it, according to notes; the script does not. Here as in the paper.
    - Two expectations: the paper averages own and external answers separately; the code and this recipe take one mean.
    - Rows: the code does not divide by their number, so its loss grows with a micro-batch; here the loss is divided by
      it.
    - Entropy: a mean over tokens in the code; here a sum with the denominators of the policy loss.
    - Group of one: with the code's option of statistics over own rows alone, it keeps its reward; its advantage is 0
      here.
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
    """Weigh tokens of an unknown expert by multiple importance sampling.

        f = g = sg(1 - p)^exploration p / ((1 - share) p_old + share q)

    The factor is at most 1 / share if q >= p, however unlikely the token is under the old policy; it is not clipped.
    RL-PLUS uses (p_old + p_expert) / 2 with p_expert = (p_old + u) / 2: share 0.25, q = u.

    Args:
        share: weight of q in the mixture, between 0 and 1.
        prior: q, one probability for every token, above 0 and at most 1: 1 / |V| in the paper (here for the models it
            trains), 1 in its code. None: q is the stream `other_logprob`, the log-probs of a second behaviour policy.
        exploration: exponent, at least 0, that reduces the factor of tokens that are already likely.

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
        """Return the columns to read: old log-probs, and if `prior` is None, those of the second behaviour policy."""
        return ("old_logprob",) if self.prior is not None else ("old_logprob", token("other_logprob"))

    def __call__(self, tokens: Tokens, log_ratio: Tensor, bounds: ClipBounds) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the importance weight of each expert token, relative to the mixture of policies."""
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
