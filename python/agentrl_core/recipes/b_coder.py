"""B-Coder: a value of every token of a program, learned from programs that others wrote (arXiv:2310.03173).

    Q(s, a) = alpha (l(s, a) - max l(s, .)) + V(s),   l the policy's logits, V its value head, alpha 1
    y_t = r_t + 0.999 Q_target(s_{t+1}, argmax of the proposal),   r_t: the tests' verdict at the last token
    L = mean over tokens of (Q - y)^2 + 0.5 (- log p)

The bootstrap takes the token that a frozen proposal (the supervised model) likes best, in place of a free maximum: no
value of what nobody would write is believed. It is the token column `value`, and `return` follows from it; the batch's
programs may be anybody's, since there are no ratios. A third term on the advantage is left out: neither its form nor
its weight is known, as alpha, the weight of cross-entropy and gamma are not.

Needs: the token column `value`, of `arl.annotate(batch, "value", proposed_value(proposal, target))`; a policy with a
value head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from agentrl_core import Recipe
from agentrl_core.advantage import Gae
from agentrl_core.loss import Imitation, Sum, Value

if TYPE_CHECKING:
    from torch import Tensor, nn


def proposed_value(proposal: nn.Module, target: nn.Module, scale: float = 1.0) -> Callable[[Any], Tensor]:
    """Probe for `arl.annotate`: the target's Q of the proposal's most likely token, before each token.

    Args:
        proposal: the frozen supervised model.
        target: a copy of the policy, with its value head.
        scale: alpha.
    """

    def answer(pack: Any) -> Tensor:
        best = cast("Tensor", pack.run(proposal, outputs=("likeliest",)).likeliest)
        asked = replace(pack.to(best.device), target=best, _copies={})
        said = asked.run(target, outputs=("max_logprob", "value"))
        gap = (said.logprob - cast("Tensor", said.max_logprob)) / asked.to(
            said.logprob.device
        ).streams.inverse_temperature
        return cast("Tensor", cast("Tensor", said.value) + scale * gap)

    return answer


B_CODER = Recipe(
    name="b_coder",
    source="arXiv:2310.03173",
    frozen=("critic",),  # a copy of the policy that one's own loop makes
    advantage=Gae(gamma=0.999, lam=0.0),
    loss=Sum(Value("token_mean", of="duelling"), Imitation("token_mean"), 2.0, 0.5),
)
