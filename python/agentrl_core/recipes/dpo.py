"""DPO: prefer the better of two answers by its log-ratio to a reference, without a reward model.

    L = - mean over pairs of log sigmoid(0.1 (x_chosen - x_rejected)),   x = sum over the answer of log p - log p_ref

The answer with the higher score is chosen. A pair is a group of two, or two draws with the same number in the column
`pair`. A pair of equal scores has no preferred answer and does not count. `Preference` also has IPO and SLiC (`kind`),
label smoothing, and means over tokens.

Equations:
    Read: the public code and its README; the paper's text was not read.

    - 7, loss: `Preference`, sums over the tokens of the policy, mean over pairs.
    - G, gradient: the gradient of `Preference`.
    - C1, implicit rewards: the metrics `margin` and `accuracy` of `Preference`.
    - C2, label smoothing: an option, `Preference(smoothing=e)`.
    - C3, IPO: an option, `Preference(kind="square")`.
    - C4, reference: the model `reference`, which no loss trains.

Differs:
    - Several answers to a task: the source pairs each better answer with each worse one; here groups have two answers,
      or the column `pair` defines the pairs.
    - Weight beta: 0.1 to 0.5 according to a comment in the code; 0.1 here.

Source: arXiv:2305.18290. Needs: the model `reference`.
"""

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.loss import Preference

DPO = Recipe(
    name="dpo",
    source="arXiv:2305.18290",
    advantage=GroupRelative(),
    loss=Preference(),
)
