"""Hooks: actions on models, learning rates and the loop, between and after optimizer steps."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from agentrl_core.component import Component, option
from agentrl_core.component.controller import Controller

BEGIN = "begin"
"""Model name in hooks for the model's parameters at the start of the iteration."""
Unit = Literal["iterations", "steps", "steps_of_iteration"]
"""Unit in which a hook counts."""


@dataclass(frozen=True)
class Hook(Component, ABC):
    """Base class of hooks, with the conditions for when they run.

    Iterations and optimizer steps are numbered from 1 here, over the whole run. A hook runs if all conditions hold;
    without conditions, always.

    Args:
        every: run at multiples of this number; None: no condition.
        once: run at this number only; None: no condition.
        until: run before this number; None: no condition.
        since: run from this number on; None: no condition.
        when: run while this controller (a condition such as `schedule.Above`) is not 0, by the latest metrics. With
            unit `steps` it is read after steps that have its metrics: a step of the critic has no divergence of the
            policy.
        unit: what is counted: `iterations`, optimizer `steps`, or `steps_of_iteration`: the steps within each
            iteration, from 1.

    Example:
        >>> from agentrl_core import schedule
        >>> [number for number in range(1, 9) if schedule.FreezeModel("critic", every=2, until=7).is_due(number)]
        [2, 4, 6]
    """

    phase: ClassVar[str] = "hooks"
    acts_in_step: ClassVar[bool] = False
    """Whether `update.step` reads the hook's `factor` before an optimizer step, with the draw column `column`."""
    restores: ClassVar[bool] = False
    """Whether the hook restores the models to their state at the start of the iteration."""

    _: KW_ONLY
    every: int | None = option(None, at_least=1)
    once: int | None = option(None, at_least=1)
    until: int | None = option(None, at_least=1)
    since: int | None = option(None, at_least=1)
    when: Controller | None = None
    unit: Unit = "iterations"

    def is_due(self, number: int) -> bool:
        """Return whether the hook runs in the iteration or step of this number, without reading `when`."""
        return (
            (self.every is None or number % self.every == 0)
            and (self.once is None or number == self.once)
            and (self.until is None or number < self.until)
            and (self.since is None or number >= self.since)
        )

    def factor(self, weights: NDArray[np.float64] | None) -> float | None:  # noqa: ARG002 - for subclasses
        """Return the factor of the learning rate in a step; None skips the step.

        Args:
            weights: the draw column `column` of the draws that the step trains; None if the hook names no column.
        """
        return 1.0

    def is_active(self, iteration: int, states: Mapping[str, Any], place: str) -> bool:
        """Return whether the hook runs in an iteration, by the states at its start.

        Args:
            iteration: numbered from 0.
            states: states of components by place.
            place: place of this hook in the recipe.
        """
        return self.is_due(iteration + 1) and (
            self.when is None or self.when.now(iteration, states, f"{place}.when") != 0.0
        )


@dataclass(frozen=True)
class SyncModel(Hook):
    """Move a model towards another one in place: target <- (1 - mix) target + mix source, parameters and buffers.

    With `mix=1` it copies. `source` and `target` are names of models that `recipe.updates` and `recipe.run_hooks`
    receive; `begin` is `target` at the start of the iteration. Uses:

    - a reference that follows: SyncModel("policy", "reference", every=4), or softly with mix=0.6 and unit="steps"
      (TR-DPO, arXiv:2404.09656);
    - an average: SyncModel("policy", "proximal", mix=1 - decay), with `corrected` the one of PPO-EWMA
    (arXiv:2110.00641);
    - the slow step after fast ones: SyncModel("begin", "policy", mix=1 - alpha, once=3, unit="steps_of_iteration")
    (SFPO);
    - a restart: SyncModel("start", "policy", when=schedule.Plateau("evaluation")).

    Numbers are computed in float32 (float64 for models in float64) and stored in the dtype of `target`: a slow average
    needs a model in float32. The state of optimizers does not change.

    Args:
        source: name of the model to move towards.
        target: name of the model that moves.
        mix: share of `source` in the result, above 0 and at most 1.
        corrected: whether the share of the n-th time is mix / (1 - (1 - mix)^(n + 1)), so that the first `target`
            counts as one of n + 1 terms, not as the whole past. It excludes `once` and `when`.
        own_steps: with unit `steps`, whether only optimizer steps of `source` count; otherwise steps of every trained
            model count.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.schedule import SyncModel
        >>> recipe = recipes.GRPO.replace(hooks=SyncModel("policy", "reference", mix=0.6, every=512, unit="steps"))
    """

    source: str = option(filled=True)
    target: str = option(filled=True)
    mix: float = option(1.0, above=0, at_most=1)
    corrected: bool = False
    own_steps: bool = False

    def check_options(self) -> None:
        """Check the two models, and that `corrected` and `own_steps` fit the other options."""
        self.require(self.source != self.target, "target", f"name another model than source={self.source!r}")
        self.require(
            self.target != BEGIN, "target", "it is a copy that no hook changes: name a model, such as 'reference'"
        )
        regular = self.once is None and self.when is None
        self.require(not self.corrected or regular, "corrected", "leave out `once` and `when`, and set `every`")
        counts = self.unit == "steps" and self.source != BEGIN
        self.require(
            not self.own_steps or counts, "own_steps", "use it with unit='steps' and a trained model as source"
        )

    def share(self, number: int) -> float:
        """Return the share of `source` in the iteration or step of this number."""
        if not self.corrected:
            return self.mix
        times = number // (self.every or 1)
        return self.mix / (1.0 - (1.0 - self.mix) ** (times + 1)) if self.mix < 1.0 else 1.0


@dataclass(frozen=True)
class SwapModels(Hook):
    """Exchange two models, parameters and buffers, in place.

    Args:
        one: name of a model.
        other: name of another model.

    Example:
        >>> from agentrl_core.schedule.hook import SwapModels
        >>> SwapModels("proposer", "solver", every=5).is_due(10)
        True
    """

    one: str = option(filled=True)
    other: str = option(filled=True)

    def check_options(self) -> None:
        """Require two different models."""
        self.require(self.one != self.other, "other", f"name another model than one={self.one!r}")


@dataclass(frozen=True)
class StopTraining(Hook):
    """End the training (`HookResult.stop`), or with unit `steps` the updates of the iteration.

    Args:
        when: the stopping condition: StopTraining(when=Above("approximate_kl", 0.02), unit="steps") is PPO's
            early stop.

    Example:
        >>> from agentrl_core.schedule import Above, StopTraining
        >>> StopTraining(when=Above("approximate_kl", 0.02), unit="steps").is_due(7)
        True
    """


@dataclass(frozen=True)
class FreezeModel(Hook):
    """Skip the updates of a model: for a warm-up of others, alternation or delay.

    `FreezeModel("policy", until=51)` trains the critic alone for 50 iterations; `FreezeModel("policy", every=2)` trains
    the policy in every other iteration (delayed policy updates of TD3, arXiv:1802.09477). Its `when` is read at the
    start of the iteration.

    Args:
        model: name of the model.

    Example:
        >>> from agentrl_core.schedule import FreezeModel
        >>> [FreezeModel("policy", until=3).is_due(iteration) for iteration in (1, 2, 3)]
        [True, True, False]
    """

    model: str = option(filled=True)

    def check_options(self) -> None:
        """Require unit `iterations`."""
        self.require(self.unit == "iterations", "unit", "models are frozen for whole iterations: give 'iterations'")


@dataclass(frozen=True)
class LimitStaleness(Hook):
    """Limit how far generation runs ahead of the trainer: the staleness gate of asynchronous training.

    `Collector(..., staleness=s)` starts up to s iterations after the open one. When the batch of iteration k is
    requested, iterations up to k + min(s, at_most) start, with the smallest `at_most` of all active hooks. Iterations
    that have started continue and are trained. So a batch that starts under this limit is at most `at_most` policy
    versions old, and with 0 generation waits for the trainer. It is AReaL's gate (arXiv:2505.24298) counted in batches,
    with an eta that may follow a metric. Controllers are read at the start of iteration k, from the metrics of closed
    iterations.

    - wait while the policies differ much: LimitStaleness(0, when=Above("approximate_kl", 0.02));
    - run ahead while the effective sample size is large: LimitStaleness(Choice((0, 4), by=Above("effective_fraction",
    0.8))); - keep a target staleness: LimitStaleness(PID("tokens.staleness", target=1, start=2, proportional=-1,
    at_least=0, at_most=4)).

    Args:
        at_most: number of iterations that may start after the open one, an integer of at least 0.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.schedule import Above, LimitStaleness
        >>> recipe = recipes.AREAL.replace(hooks=LimitStaleness(0, when=Above("approximate_kl", 0.02)))
    """

    at_most: int = option(0, at_least=0)

    def check_options(self) -> None:
        """Require unit `iterations`."""
        self.require(self.unit == "iterations", "unit", "iterations are begun ahead: give 'iterations'")


@dataclass(frozen=True)
class SkipStep(Hook):
    """Skip the optimizer step in `update.step` and clear its gradients, if the conditions of the hook hold.

    Args:
        model: name of the model whose steps are skipped.

    Example:
        >>> from agentrl_core.schedule import Above, SkipStep
        >>> SkipStep(when=Above("approximate_kl", 1e-3)).unit  # MARFT
        'steps'
    """

    acts_in_step: ClassVar[bool] = True

    model: str = option("policy", filled=True)
    _: KW_ONLY
    unit: Unit = "steps"

    def factor(self, weights: NDArray[np.float64] | None) -> None:
        """Return None, so that the optimizer step is skipped."""


@dataclass(frozen=True)
class RepeatStage(Hook):
    """Repeat a stage after the updates while its metrics meet a condition, at most `at_most` times (FixPO's fix-up).

    Args:
        stage: the stage whose losses each pass trains; see `loss.Train`.
        at_most: largest number of passes, at least 1.
        when: passes continue while this is not 0 after the last one: Above("max_kl", 0.2).

    Example:
        >>> from agentrl_core.schedule import Above, RepeatStage
        >>> RepeatStage("fixup", at_most=5, when=Above("approximate_kl", 0.2)).at_most
        5
    """

    stage: str = option(filled=True)
    at_most: int = option(1, at_least=1)

    def check_options(self) -> None:
        """Require unit `iterations`."""
        self.require(self.unit == "iterations", "unit", "passes are repeated after all updates; give 'iterations'")
