"""SDAR: GRPO plus gated distillation from the policy itself under a prompt with a skill (arXiv:2605.15155).

The teacher is the policy itself under a prompt that also has a retrieved skill. A sampled token has a large gate if the
teacher finds it more likely than the policy does. If the teacher finds it less likely, the gate is small, since the
skill may be wrong:

    d_t = log q(y_t) - log p(y_t),   g_t = sigmoid(5 d_t) without gradient
    L = L_GRPO + 0.01 * mean over trajectories of the mean over tokens of g_t d_t

The gradient of the second term by log p(y_t) is -0.01 g_t / (tokens): no token is made less likely, and groups
whose rewards are all equal are trained too. The GRPO part has the KL penalty to the reference model (k3) with
coefficient 0.01. `prompts` has the token ids of a prompt with a skill for each draw:

    batch = arl.annotate(batch, "teacher_logprob", teacher, prompts=prompts)

Needs: a reference model, and a model `teacher`: a copy of the policy, passed to `recipe.run_hooks`, or the policy
itself.

Equations:
    Read: the authors' code, and notes with the paper's formulas; the paper's text was not read.

    - N1, GRPO: `Policy("sequence_mean", clip=Clip(0.2, 0.2), kl=KL(0.01))` and `GroupRelative`.
    - N2, gap: `GatedDistillation`, between `teacher_logprob` and the log-prob of the trained policy.
    - C1, gate: `GatedDistillation(sharpness=5.0)`.
    - C2, loss: `GatedDistillation("sequence_mean")`; for the code's mean over all tokens, both terms need
      `"token_mean"`.
    - N3, sum: `Sum`, with coefficients 1 and 0.01.
    - C3, teacher: `SyncModel`: the weights at the start of the iteration.

Differs:
    - Gate: the paper also compares a gate by the entropy, and one by entropy or gap; here the gap, the paper's method.
    - Rows: each turn is a row of the mean in the code, each trajectory here.
    - Invalid actions: their penalty of 0.1 is part of the environment's reward.
    - Optimizer steps: mini-batches of 256 turns in the code, 64 for WebShop; one step here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentrl_core import Recipe
from agentrl_core.advantage import GroupRelative
from agentrl_core.component import Column, option, token
from agentrl_core.loss import KL, Clip, Policy, Sum, Tokens, WeightedLoss, metric_sums, torch
from agentrl_core.schedule import SyncModel

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class GatedDistillation(WeightedLoss):
    """Raise the log-probs of sampled tokens, more if a teacher finds them likelier than the policy does.

        L = sum of w g d,   d = log q - log p,   g = sigmoid(sharpness d), without gradient

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.
        sharpness: factor of d in the gate; 0: the gate is one half everywhere.

    Metrics: `teacher_kl` (-d), `gate` and `entropy`.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.recipes.sdar import GatedDistillation
        >>> GatedDistillation().needs
        (token('teacher_logprob'),)
    """

    sharpness: float = option(5.0, at_least=0)

    @property
    def needs_score(self) -> bool:
        """Return False: distillation needs no reward."""
        return False

    def own_reads(self) -> Iterable[str | Column]:
        """Return the streams that the loss reads: weights and the teacher's log-probs."""
        yield "weight_kl"
        yield token("teacher_logprob", model="teacher")

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum of the gated log-ratios of all rows, and metrics."""
        log_ratio = tokens.log_ratio_to("teacher_logprob")
        gate = torch.sigmoid(-self.sharpness * log_ratio.detach())
        value = -(tokens.stream("weight_kl") * gate * log_ratio).sum()
        gates = torch.where(tokens.trained, gate, 0.0)
        return value, metric_sums(tokens, entropy=tokens.entropy, teacher_kl=log_ratio, gate=gates)


SDAR = Recipe(
    name="sdar",
    source="arXiv:2605.15155",
    advantage=GroupRelative(),
    loss=Sum(Policy("sequence_mean", clip=Clip(0.2, 0.2), kl=KL(0.01)), GatedDistillation("sequence_mean"), 1.0, 0.01),
    hooks=SyncModel("policy", "teacher"),
)
