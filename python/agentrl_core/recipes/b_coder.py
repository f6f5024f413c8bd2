"""B-Coder: a value of every token of a program, learned from programs that others wrote (arXiv:2310.03173).

    Q(s, a) = alpha (l(s, a) - max l(s, .)) + V(s),   l the policy's logits, V a head: the model's answer `value`
    y_t = r_t + 0.999 Q_target(s_{t+1}, argmax of the proposal),   r_t: the tests' verdict at the last token
    L = mean over tokens of (Q - y)^2 + 0.5 (- log p)

The bootstrap takes the token that a frozen proposal (the supervised model) likes best, in place of a free maximum: no
value of what nobody would write is believed. It is the token column `value`, and `return` follows from it; the batch's
programs may be anybody's, since there are no ratios. alpha belongs to the model that answers `value`. A third term on
the advantage is left out: neither its form nor its weight is known, as the weight of cross-entropy and gamma are not.

Needs: the token column `value`, Q_target of the proposal's choice at each token.
"""

from agentrl_core.advantage import Gae
from agentrl_core.loss import Imitation, Sum, Value
from agentrl_core.recipe import Recipe

B_CODER = Recipe(
    name="b_coder",
    source="arXiv:2310.03173",
    advantage=Gae(gamma=0.999, lam=0.0),
    loss=Sum(Value("token_mean"), Imitation("token_mean"), 2.0, 0.5),
)
