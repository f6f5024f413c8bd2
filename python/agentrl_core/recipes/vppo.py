"""VPPO: give more weight to tokens and draws that depend on their input (arXiv:2510.09285).

A second log-prob under a perturbed input measures how much a token depends on the input. For images, the perturbation
blacks out patches; for agents, it leaves out a tool result or a document:

    S = min(e^d - d - 1, 10),    d = log p(perturbed) - log p, within +-20.

The weight of a draw is 0.9 + n (most - 0.9). Here n is the draw's mean S, scaled to [0, 1] over the batch, and `most`
is chosen such that the mean factor is 1. Within a draw, only the 40 % of its tokens with the largest S are in the
clipped loss. A drift of 0.06 penalises entropy: it has the gradient of - 0.06 log p.

Equations:
    Read: the paper's section 3.2, appendices B and C, and the code.

    - 3, dependence of a token: left out: it needs the distributions over the vocabulary; appendix B estimates it from
      the sampled token, as C1 does.
    - C1, estimated dependence: `InputDependency`, its column `dependency`.
    - 4, token mask: `TopTokens("dependency", 0.4)`, the ceil(0.4 n) largest of an answer of n tokens.
    - 5, factor of a response: `InputDependency(at_least=0.9)`, over the batch; the upper end of the range makes the
      mean factor 1.
    - C3, factor of the code: the same, over a mini-batch.
    - 6, objective: `Policy`, one mean over all tokens, including those outside the mask, as in table 9; the equation
      has the mean of each response. `admit` filters groups.
    - C4, loss of the code: the same, with a dual clip of 3.
    - C5, entropy penalty: `drift=KL(0.06, "k1")`; its value is less by 0.06 times the mean of - log p_old, a constant.

Differs:
    - Range and mean of the factors: the code takes the range over the mini-batch of a device and the mean over the
      micro-batch; here both are over the batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe, group
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, column_name, draw, mean_of_tokens, option, token
from agentrl_core.loss import KL, Clip, Policy, TopTokens
from agentrl_core.select import Band, DynamicSampling

if TYPE_CHECKING:
    from agentrl_core import Batch

_LOG_RATIO_AT_MOST = 20.0


@dataclass(frozen=True)
class InputDependency(BatchComponent):
    """Weight draws by how much their tokens depend on the input.

    The formula is in the module docstring. If all draws depend equally, the factor is 1.

    Args:
        perturbed: token column of log-probs under the perturbed input.
        behaviour_logprob: token column of log-probs under the input itself.
        at_least: the smallest factor.
        dependency_at_most: the largest dependency of a token.

    Raises:
        RecipeError: an option is out of range, or a column has no known value.

    Example:
        >>> from agentrl_core.recipes.vppo import InputDependency
        >>> InputDependency().makes
        (draw('weight'), token('dependency'))
    """

    phase: ClassVar[str] = "weight"
    makes: ClassVar[tuple[Column, ...]] = (draw("weight"), token("dependency"))

    perturbed: str = column_name("perturbed_logprob", level="token")
    behaviour_logprob: str = column_name("behaviour_logprob", level="token")
    at_least: float = option(0.9, at_least=0.0, at_most=1.0)
    dependency_at_most: float = option(10.0, above=0.0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with its `weight` scaled, and with the column `dependency` (NaN if unknown)."""
        rows = Rows(batch, "token")
        known = rows.known(self.perturbed) & rows.known(self.behaviour_logprob)
        gaps = np.where(known, rows.values(self.perturbed) - rows.values(self.behaviour_logprob), 0.0)
        gaps = np.clip(gaps, -_LOG_RATIO_AT_MOST, _LOG_RATIO_AT_MOST)
        dependencies = np.minimum(np.expm1(gaps) - gaps, self.dependency_at_most)
        batch = rows.write(dependency=np.where(known, dependencies, np.nan))
        means, counted = mean_of_tokens(batch, "dependency", "draw")
        draws = Rows(batch, "draw")
        batch_ids = draws.keys("batch")
        scaled = group.min_max(means, batch_ids, valid=counted)
        middle = np.nan_to_num(group.statistics(scaled, batch_ids, valid=counted).mean, nan=0.0)
        levels = middle[batch_ids] if len(middle) else np.zeros(len(draws))
        slope = np.divide(1.0 - self.at_least, levels, out=np.zeros(len(draws)), where=levels > 0.0)
        return draws.scale(np.where(counted & (levels > 0.0), self.at_least + scaled * slope, 1.0))


VPPO = Recipe(
    name="vppo",
    source="arXiv:2510.09285",
    admit=DynamicSampling(Band(at_least=0.01, at_most=0.99)),
    frozen=("perturbed",),  # the policy itself, on the perturbed input
    advantage=GroupRelative(),
    weight=InputDependency(),
    loss=Policy(
        clip=Clip(0.2, 0.28, dual=3.0),
        mask=TopTokens("dependency", 0.4, scope="sequence", kind="ceil"),
        drift=KL(0.06, "k1", direction="forward"),
    ),
    minibatches=3,
)
