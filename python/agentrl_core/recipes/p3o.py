"""P3O: use the policy gradient of the difference of rewards between two answers (arXiv:2310.00212).

Rewards that are learned from comparisons are known only up to a shift for each question. A gradient of differences does
not depend on this shift. The advantage has to be the reward, or the reward minus one baseline for both answers;
dividing by a spread would change the difference. The reward of an answer includes the divergence from a reference:

    R = r - 0.1 sum over its tokens of (log p_k - log p_reference),   p_k the policy that sampled

Needs: the SFT model as reference: `arl.annotate(batch, "reference_logprob", model)` before the credit phases.

Equations:
    Read: two digests and notes of others, the second one on the authors' blog; neither the paper nor its code was
    read.

    - 6, pairwise policy gradient: `PairwiseProximal`, evaluated at the policy that sampled;
      `GroupRelative(scale="none")` keeps the difference of the rewards.
    - N1, reward: `ReferencePenalty(0.1)` after `OutcomeScore`.
    - N2, separate clip (V1): `PairwiseProximal(kind="separate")`.
    - N3, joint clip (V2): `PairwiseProximal(kind="joint")`, an option.
    - N4, reward model: left out: it is trained beforehand, and the environment returns its score.

Differs:
    - Choice of V1 or V2: the paper has both; the recipe uses V1, whose clip range is that of PPO.
    - Coefficient of the divergence: not stated; 0.1 here.
    - Optimizer steps a batch: not stated; 1 here, so that both ratios are 1 and nothing is clipped.
      `P3O.replace(minibatches=4)` makes 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, draw, option, sum_rows, token
from agentrl_core.loss import ADVANTAGES, Tokens, Unit, WeightedLoss, metric_sums, torch
from agentrl_core.reward import OutcomeScore

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch


@dataclass(frozen=True)
class ReferencePenalty(BatchComponent):
    """Subtract the divergence from a reference model from the score of each draw.

        score <- score - coefficient * sum over trained tokens of (log p_behaviour - log p_reference)

    Args:
        coefficient: factor of the divergence, above 0.

    Example:
        >>> from agentrl_core.recipes.p3o import ReferencePenalty
        >>> ReferencePenalty().needs
        (draw('score'), token('behaviour_logprob'), token('reference_logprob'))
    """

    phase: ClassVar[str] = "reward"
    needs: ClassVar[tuple[Column, ...]] = (
        draw("score"),
        token("behaviour_logprob"),
        token("reference_logprob", model="reference"),
    )
    makes: ClassVar[tuple[Column, ...]] = (draw("score"),)

    coefficient: float = option(0.1, above=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the penalty subtracted from the `score` of draws."""
        tokens, draws = Rows(batch, "token"), Rows(batch, "draw")
        log_ratio = tokens.values("behaviour_logprob") - tokens.values("reference_logprob")
        counted = tokens.flags("trainable") & np.isfinite(log_ratio)
        distance = sum_rows(np.where(counted, log_ratio, 0.0), tokens.draws, batch.num_draws)
        return draws.write(score=draws.values("score") - self.coefficient * distance)


@dataclass(frozen=True)
class PairwiseProximal(WeightedLoss):
    """Move the two answers of a pair apart according to the difference of their rewards, within a clip range.

    R are the advantages of the two answers (their rewards with the divergence), and r the ratios of whole answers to
    the old policy, limited to exp(+-20). With D = log p(y1) - log p(y2), a pair costs - J:

        `separate`: J = 1/2 sum over i of min(v r_i, v clip(r_i, 1 +- epsilon)),  v = sg((R_i - R_j) r_j)
        `joint`:    J = 1/2 min(v D, v clip(D, D_old +- epsilon)),                v = sg((R_1 - R_2) r_1 r_2)

    Args:
        aggregate: see `WeightedLoss`.
        constant: see `WeightedLoss`.
        kind: `separate` or `joint`, see above.
        epsilon: size of the clip range, between 0 and 1.

    Example:
        >>> import torch
        >>> from agentrl_core.loss import Tokens
        >>> from agentrl_core.recipes.p3o import PairwiseProximal
        >>> gain, pull = torch.tensor([0.5, 0.0]), torch.tensor([0.0, -0.5])  # A is 1 and -1, each of weight 1/2
        >>> streams = {"weight_kl": torch.full((2,), 0.5), "advantage_positive": gain, "advantage_negative": pull}
        >>> streams |= {"sequence": torch.tensor([0, 1]), "pair": torch.tensor([0, 0])}
        >>> streams["old_logprob"] = torch.tensor([-2.0, -2.0])
        >>> tokens = Tokens(torch.tensor([1.5, 1.0]).log() - 2.0, None, streams)  # ratios 1.5 and 1
        >>> PairwiseProximal().evaluate(tokens)[0].item()  # -(min(3, 2.4) - 3) / 2
        0.3
    """

    reads: ClassVar[tuple[str | Column, ...]] = (*ADVANTAGES, "weight_kl", "sequence", "pair", "old_logprob")
    over: ClassVar[Unit] = "pair"

    kind: Literal["separate", "joint"] = "separate"
    epsilon: float = option(0.2, above=0, below=1)

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of the pairs, and metrics."""
        sequences, pairs, members = tokens.segments("sequence"), tokens.segments("pair"), tokens.members("pair")

        def difference(values: Tensor) -> Tensor:
            """Return, for each member, its value minus the value of the other member."""
            return 2.0 * values - members.spread(members.sum(values))

        log_ratio = tokens.limited(sequences.sum(tokens.logprob - tokens.stream("old_logprob")))
        ratio, gain = log_ratio.exp(), difference(sequences.mean(tokens.advantage))
        other = (log_ratio - difference(log_ratio)).detach().exp()
        if self.kind == "separate":
            value = gain * other
            bounded = ratio.clamp(1.0 - self.epsilon, 1.0 + self.epsilon)
            objective = torch.minimum(value * ratio, value * bounded) / 2.0
        else:
            value = gain * ratio.detach() * other
            logprob_gap = difference(sequences.sum(tokens.logprob))
            old_gap = difference(sequences.sum(tokens.stream("old_logprob")))
            # Both members have the same objective, so each gets half of it.
            bounded = logprob_gap.clamp(min=old_gap - self.epsilon, max=old_gap + self.epsilon)
            objective = torch.minimum(value * logprob_gap, value * bounded) / 4.0
        objective = torch.where(sequences.exists, objective, 0.0)
        loss = -(pairs.sum(tokens.stream("weight_kl")) * members.sum(objective)).sum()
        return loss, metric_sums(tokens, ratio=sequences.spread(ratio), entropy=tokens.entropy)


P3O = Recipe(
    name="p3o",
    source="arXiv:2310.00212",
    reward=(OutcomeScore(), ReferencePenalty(0.1)),
    advantage=GroupRelative(scale="none"),
    loss=PairwiseProximal("sequence_mean", kind="separate"),
)
