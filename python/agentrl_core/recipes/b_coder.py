"""B-Coder: learn a value of every token of a program, from programs that others wrote (arXiv:2310.03173).

    Q(s, a) = alpha (l(s, a) - max l(s, .)) + V(s),   l the policy's logits, V its value head, alpha 1
    y_t = r_t + 0.999 Q_target(s_{t+1}, argmax of the proposal),   r_t: the result of the tests, at the last token
    L = mean over programs of the mean over their tokens of (Q - y)^2
        + mean over human programs of the sum over their tokens of (0.1 |Q - V| + 0.5 (- log p))

The bootstrap uses the likeliest token of a frozen proposal (the supervised model) in place of a free maximum. So it
trusts no value of a token that no program contains. The token column `value` holds this bootstrap value, and `return`
follows from it. The loss has no ratios, so the programs of a batch may have any author. Human programs are those with
origin `expert`. Before this training, the stage `warm_start` trains only the value head, on the same error: give the
head's parameters to the optimizer of that stage. In the paper half of the programs of a batch are human.

Equations:
    Read: the paper.

    - 2, reward: left out: the environment gives the result of the tests: 1, -0.3, -0.6 or -1 at the last token.
    - 7, duelling form: `Value(of="duelling")` and `proposed_value`.
    - 8, advantage loss: `HumanPrograms(advantage=0.1)`.
    - 11, policy: the policy's own logits; the value does not change them.
    - 12, first stage: the stage `warm_start`.
    - 15, conservative temporal difference: `proposed_value` and `Gae(gamma=0.999, lam=0.0)`.
    - 17, second stage: the `Sum` of both losses; the cross-entropy of equation 1 is `HumanPrograms(likelihood=0.5)`.
    - 19, reward model for ranking: left out: it ranks finished programs, after training.

Differs:
    - Value: the paper adds a residual head that starts at 0 to the frozen head of the first stage; here the one head of
      the first stage is trained further.
    - Mean over tokens: over the tokens of each program; the paper writes 1/T, with one constant T for all programs.
    - Factor of the first stage: 1/2, which the paper does not have.
    - Cap of Q at the largest reward: left to the value head here; the paper's head returns 1 - softabs(V).
    - Program without a verdict: not in the loss at all; all its tokens but the last would have a target.

Needs: the token column `value`, from `arl.annotate(batch, "value", proposed_value(proposal, target))`; a policy with a
value head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.component import Column, Where, option
from agentrl_core.loss import Sum, Tokens, Train, Value, WeightedLoss, metric_sums

if TYPE_CHECKING:
    from torch import Tensor, nn


def proposed_value(proposal: nn.Module, target: nn.Module, scale: float = 1.0) -> Callable[[Any], Tensor]:
    """Return a function for `arl.annotate`: the target's Q of the proposal's likeliest token at each position.

    Args:
        proposal: the frozen supervised model.
        target: a copy of the policy, with its value head.
        scale: the factor alpha.
    """

    def answer(pack: Any) -> Tensor:
        best = cast("Tensor", pack.run(proposal, outputs=("likeliest",)).likeliest)
        proposed = replace(pack.to(best.device), target=best, _copies={})
        outputs = proposed.run(target, outputs=("max_logprob", "value"))
        gap = (outputs.logprob - cast("Tensor", outputs.max_logprob)) / proposed.to(
            outputs.logprob.device
        ).streams.inverse_temperature
        return cast("Tensor", cast("Tensor", outputs.value) + scale * gap)

    return answer


@dataclass(frozen=True)
class HumanPrograms(WeightedLoss):
    """Train tokens of human programs to have the highest advantage of all tokens, and imitate them.

        L = sum of w (advantage * scale (max l - l) - likelihood * log p),   l the logits

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        advantage: weight of the advantage's distance from 0, the highest advantage; at least 0.
        likelihood: weight of the cross-entropy, at least 0.
        scale: the factor alpha, above 0.

    Example:
        >>> from agentrl_core.recipes.b_coder import HumanPrograms
        >>> HumanPrograms("constant", 1.0).outputs
        ('max_logprob',)
    """

    reads: ClassVar[tuple[str | Column, ...]] = ("weight_kl", "inverse_temperature")
    reads_outputs: ClassVar[tuple[str, ...]] = ("max_logprob",)

    advantage: float = option(0.1, at_least=0)
    likelihood: float = option(0.5, at_least=0)
    scale: float = option(1.0, above=0)

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, a sum of distances to the largest logit and of cross-entropies of tokens, and metrics."""
        gap = self.scale * (tokens.output("max_logprob") - tokens.logprob)
        gap = gap / tokens.raw("inverse_temperature").where(tokens.trained, 1.0)
        loss = (tokens.stream("weight_kl") * (self.advantage * gap - self.likelihood * tokens.logprob)).sum()
        return loss, metric_sums(tokens, human_advantage=-gap, nll=-tokens.logprob)


_ERROR = Value("sequence_mean", of="duelling")

B_CODER = Recipe(
    name="b_coder",
    source="arXiv:2310.03173",
    frozen=("critic",),  # a copy of the policy, made by your own training loop
    advantage=Gae(gamma=0.999, lam=0.0),
    loss=(
        Train(Sum(_ERROR, HumanPrograms("constant", 1.0), 2.0, second_where=Where(origin="expert"))),
        Train(_ERROR, stage="warm_start"),
    ),
)
