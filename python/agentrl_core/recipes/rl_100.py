"""RL-100: train with frozen critics, and keep the new policy only if they value it 5 % higher (arXiv:2510.14830).

    A_t = Q(s_t, a_t) - V(s_t), minus its mean and divided by its std in the batch
    L = - mean over tokens of min(r A, clip(r, 0.75, 1.25) A), four epochs;   then, with J_i = sum over steps of Q,
    J(old) = mean of J,   J(new) = sum of w J / sum of w,   w = product over a trajectory's tokens of p_new / p_old
    J(new) < J(old) + 0.05 |J(old)|:   the policy is restored to its state at the start of the iteration

The paper trains a robot's diffusion policy: the K denoising steps of an action share its advantage and have one ratio
each; here the tokens of an action do. Three parts are left out. The paper rolls out the new policy in a learned model
of the environment; here there is none, so stored trajectories are weighted by their ratios instead. The paper bounds
the noise, which tokens do not have. The paper distils into a policy of one denoising step, which a language model does
not need. The critics are trained before, on the same data, and so is the policy, by imitation. `RL_100_ONLINE` is the
stage that follows, with a critic that is trained and without the gate.

J(new) >= J(old) + delta if sum of w (J - J(old) - delta) >= 0. A last pass over the batch, stage `evaluation`, computes
minus that sum divided by the number of trajectories, and its optimizer step is skipped. The estimate is optimistic: it
uses the trajectories on which the policy was trained. Optimizers keep their state when updates are undone.

Needs: the step columns `action_value` and `state_value` of the frozen critics. Online: step rewards; the critic, as
step columns `value`, `old_value` and, if a rollout was cut off, `next_value`.

Equations:
    Read: the abstract, the code's trainer of the online stage and its configuration, and notes by others; the paper's
    text was not read.

    - C1, offline advantage: `ActionSurplus`, then `GroupRelative` over the steps of the batch.
    - C2, online advantage: `Gae(level="step", at_truncation="bootstrap")` of `RL_100_ONLINE`.
    - C3, online update: `GroupRelative` over the steps of the batch, `Policy`, `Value(clip=0.2)`, ten epochs of sixteen
      minibatches.
    - N1, objective within denoising: `Policy`, a ratio for each token.
    - N2, gate: `Gain`, `ExpectedGain` and `RollbackModels`.
    - N3, variance clipping: left out: tokens have no noise with a variance.
    - N4, chunk reward: left out: a turn is one decision with one reward; pass a discount of gamma^n as `gamma`.
    - N5, distillation: left out: a language model has no denoising steps to remove.

Differs:
    - Estimate of the new policy: rollouts in a learned model in the paper, importance sampling here.
    - Actions: sampled from the old policy in the code; the actions of the batch here, which the old policy sampled.
    - Denominator: the paper sums over the denoising steps of an action, equally many for all actions; here one mean
      over all tokens.
    - Clip offline: 0.25 in the code's configuration, which lowers it from step to step; 0.25 throughout here.
    - Epochs offline: the code makes 8000 steps and evaluates the candidate every 50; here four passes before each
      evaluation.
    - Optimizer steps online: one for each of ten denoising steps of a minibatch in the code, one here. The critic's
      loss is the squared error in the code, half of it here.
    - Data: new rollouts are merged into it in the paper; each batch is trained once here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from agentrl_core import Recipe
from agentrl_core.advantage import Gae, GroupRelative
from agentrl_core.component import BatchComponent, Column, Rows, option, step, token
from agentrl_core.loss import Clip, Policy, Tokens, Train, Unit, Value, WeightedLoss, metric_sums
from agentrl_core.schedule import Above, Hook, RepeatStage, SkipStep

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core import Batch

_OF_ACTIONS = step("action_value", model="action_critic")


@dataclass(frozen=True)
class RollbackModels(Hook):
    """If `when` holds, restore every model passed to `recipe.updates` to its state at the start of the iteration.

    Args:
        when: condition under which the updates are undone, such as Above("forward_kl", 0.1).

    Example:
        >>> from agentrl_core.schedule import Above
        >>> from agentrl_core.recipes.rl_100 import RollbackModels
        >>> RollbackModels(when=Above("forward_kl", 0.1)).unit
        'iterations'
    """

    restores: ClassVar[bool] = True


@dataclass(frozen=True)
class ActionSurplus(BatchComponent):
    """Compute step advantages from critics of actions and of states: advantage = action_value - state_value.

    A step with an unknown value gets 0.

    Example:
        >>> from agentrl_core.recipes.rl_100 import ActionSurplus
        >>> ActionSurplus().makes
        (step('advantage'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (_OF_ACTIONS, step("state_value", model="state_critic"))
    makes: ClassVar[tuple[Column, ...]] = (step("advantage"),)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `advantage` on steps."""
        rows = Rows(batch, "step")
        advantages = rows.values("action_value") - rows.values("state_value")
        return rows.write(advantage=np.where(rows.valid, np.nan_to_num(advantages, nan=0.0), 0.0))


@dataclass(frozen=True)
class Gain(BatchComponent):
    """Compute by how much each trajectory exceeds the value that a new policy has to reach.

        gain = J - mean of J - fraction |mean of J|,   J = the sum of `action_value` over the steps of a trajectory

    A trajectory with an unknown value is not in the mean, and its gain is 0.

    Args:
        fraction: required improvement over the old policy, as a fraction of its value; at least 0.

    Raises:
        RecipeError: the option is out of range.

    Example:
        >>> from agentrl_core.recipes.rl_100 import Gain
        >>> Gain(fraction=0.1).makes
        (token('gain'),)
    """

    phase: ClassVar[str] = "advantage"
    needs: ClassVar[tuple[Column, ...]] = (_OF_ACTIONS,)
    makes: ClassVar[tuple[Column, ...]] = (token("gain"),)

    fraction: float = option(0.05, at_least=0)

    def __call__(self, batch: Batch) -> Batch:
        """Return `batch` with the column `gain` on tokens."""
        steps, rows = Rows(batch, "step"), Rows(batch, "token")
        totals = np.bincount(steps.draws, weights=steps.values("action_value"), minlength=batch.num_draws)
        known = Rows(batch, "draw").valid & np.isfinite(totals)
        mean = totals[known].mean() if known.any() else 0.0
        gains = np.where(known, totals - mean - self.fraction * abs(mean), 0.0)
        return rows.write(gain=np.where(rows.valid, gains[rows.draws], 0.0))


@dataclass(frozen=True)
class ExpectedGain(WeightedLoss):
    """Estimate by importance sampling whether the policy reaches the value that `Gain` requires: if so, L < 0.

        L = - mean over trajectories of w gain,   w = exp(sum over tokens of log p - log p_old)

    Metric: `importance`, the mean of w over tokens.

    Args:
        aggregate: how weights are normalised, see `WeightedLoss`.
        constant: see `WeightedLoss`.

    Example:
        >>> from agentrl_core.recipes.rl_100 import ExpectedGain
        >>> ExpectedGain().unit
        'trajectory'
    """

    def own_reads(self) -> Iterable[str | Column]:
        """Return the streams that the loss reads: weights, old log-probs, gains, and the trajectory of each token."""
        return ("weight_kl", "old_logprob", "sequence", token("gain"))

    def own_unit(self) -> Unit:
        """Return `trajectory`: ratios are multiplied over the tokens of a trajectory."""
        return "trajectory"

    def evaluate(self, tokens: Tokens) -> tuple[Tensor, dict[str, Tensor]]:
        """Return minus the sum of weighted gains, and the metric `importance`."""
        sequences = tokens.segments("sequence")
        importance = sequences.spread(sequences.sum(tokens.log_ratio).clamp(max=20.0).exp())
        loss = -(tokens.stream("weight_kl") * importance * tokens.stream("gain")).sum()
        return loss, metric_sums(tokens, importance=importance)


RL_100 = Recipe(
    name="rl_100",
    source="arXiv:2510.14830",
    frozen=("action_critic", "state_critic"),
    advantage=(ActionSurplus(), GroupRelative(column="advantage", level="step", group_by="batch"), Gain()),
    loss=(Train(Policy(clip=Clip(0.25, 0.25)), epochs=4), Train(ExpectedGain(), stage="evaluation")),
    hooks=(
        RepeatStage("evaluation"),
        SkipStep(when=Above("importance", 0.0)),
        RollbackModels(when=Above("evaluation.loss", 0.0)),
    ),
)

RL_100_ONLINE = RL_100.replace(
    name="rl_100_online",
    frozen=(),
    advantage=(
        Gae(level="step", column="reward", outcome="", gamma=0.99, lam=0.95, at_truncation="bootstrap"),
        GroupRelative(column="advantage", level="step", group_by="batch", eps=1e-5),
    ),
    loss=(Train(Value("step_mean", clip=0.2, level="step"), model="critic"), Policy()),
    hooks=None,
    epochs=10,
    minibatches=16,
)
