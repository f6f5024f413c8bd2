"""What happens to models, rates and the loop between optimizer steps and after them."""

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
"""The name of what a model was when the iteration began, where an action names a model."""
Unit = Literal["iterations", "steps", "steps_of_iteration"]
"""What an action counts."""


@dataclass(frozen=True)
class Hook(Component, ABC):
    """Base of the actions of a recipe: what is done, and when.

    Iterations and optimizer steps are numbered from 1 here, over the whole run. An action is done in those that every
    condition allows; without one, in all.

    Args:
        every: in each of which the number is a multiple of this; None: in all.
        once: in this one alone; None: in all.
        until: in those before this one; None: in all.
        since: in this one and those behind it; None: in all.
        when: where this controller (a condition such as `schedule.Above`) is not 0, by what was just measured.
        unit: what is counted: `iterations`, optimizer `steps`, or `steps_of_iteration`: the steps of each iteration by
            themselves, from 1.

    Example:
        >>> from agentrl_core import schedule
        >>> [number for number in range(1, 9) if schedule.FreezeModel("critic", every=2, until=7).is_due(number)]
        [2, 4, 6]
    """

    phase: ClassVar[str] = "hooks"
    acts_in_step: ClassVar[bool] = False
    """Whether `update.step` reads it before a step of the optimizer: its `factor`, with the draw column `column`."""
    restores: ClassVar[bool] = False
    """Whether it gives the models back what they were when the iteration began."""

    _: KW_ONLY
    every: int | None = option(None, at_least=1)
    once: int | None = option(None, at_least=1)
    until: int | None = option(None, at_least=1)
    since: int | None = option(None, at_least=1)
    when: Controller | None = None
    unit: Unit = "iterations"

    def is_due(self, number: int) -> bool:
        """Whether it is done in the iteration or step of this number, as far as `when` allows."""
        return (
            (self.every is None or number % self.every == 0)
            and (self.once is None or number == self.once)
            and (self.until is None or number < self.until)
            and (self.since is None or number >= self.since)
        )

    def factor(self, weights: NDArray[np.float64] | None) -> float | None:  # noqa: ARG002 - of hooks that act in a step
        """Return what the learning rate of a step is multiplied by; None leaves the step out.

        Args:
            weights: the draw column `column` of the draws that the step trains; None if the hook names no column.
        """
        return 1.0

    def is_active(self, iteration: int, states: Mapping[str, Any], place: str) -> bool:
        """Whether it is done in an iteration (numbered from 0), by what is remembered when that begins.

        Args:
            iteration: numbered from 0.
            states: what components remember, by place.
            place: its own.
        """
        return self.is_due(iteration + 1) and (
            self.when is None or self.when.now(iteration, states, f"{place}.when") != 0.0
        )


@dataclass(frozen=True)
class SyncModel(Hook):
    """Moves a model towards another one: to <- (1 - mix) to + mix of, parameters and buffers, in place.

    With `mix=1` it is a copy. `source` and `target` are names of models that `recipe.updates` and `recipe.run_hooks`
    are given; `begin` stands for what `target` was when the iteration began. So it is:

    - a reference that follows: SyncModel("policy", "reference", every=4), or softly with mix=0.6 and unit="steps"
      (TR-DPO, arXiv:2404.09656);
    - an average: SyncModel("policy", "proximal", mix=1 - decay), with `corrected` the one of PPO-EWMA
    (arXiv:2110.00641);
    - the slow step after fast ones: SyncModel("begin", "policy", mix=1 - alpha, once=3, unit="steps_of_iteration")
    (SFPO);
    - a restart: SyncModel("start", "policy", when=schedule.Plateau("evaluation")).

    Numbers are computed in float32 (float64 where a model is) and stored as `target` stores them: an average that moves
    slowly needs a model in float32. The state of optimizers stays as it is.

    Args:
        source: name of the model that is followed.
        target: name of the model that moves.
        mix: share of `source`, above 0 and at most 1.
        corrected: the share of the n-th time is mix / (1 - (1 - mix)^(n + 1)), so that what `target` was at first
            counts as one of n + 1 terms, and not as all of the past. It needs neither `once` nor `when`.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.schedule import SyncModel
        >>> recipe = recipes.GRPO.replace(hooks=SyncModel("policy", "reference", mix=0.6, every=512, unit="steps"))
    """

    source: str = option(filled=True)
    target: str = option(filled=True)
    mix: float = option(1.0, above=0, at_most=1)
    corrected: bool = False

    def check_options(self) -> None:
        """Two models, and a number of times that is known."""
        self.require(self.source != self.target, "target", "name another model than `source`")
        self.require(self.target != BEGIN, "target", "name a model that is given: what was at the begin is past")
        regular = self.once is None and self.when is None
        self.require(not self.corrected or regular, "corrected", "say how often with `every` alone")

    def share(self, number: int) -> float:
        """The share of `source` in the iteration or step of this number."""
        if not self.corrected:
            return self.mix
        times = number // (self.every or 1)
        return self.mix / (1.0 - (1.0 - self.mix) ** (times + 1)) if self.mix < 1.0 else 1.0


@dataclass(frozen=True)
class SwapModels(Hook):
    """Exchanges two models, parameters and buffers, in place.

    Args:
        one: name of a model.
        other: name of another.

    Example:
        >>> from agentrl_core.schedule.hook import SwapModels
        >>> SwapModels("proposer", "solver", every=5).is_due(10)
        True
    """

    one: str = option(filled=True)
    other: str = option(filled=True)

    def check_options(self) -> None:
        """Two models."""
        self.require(self.one != self.other, "other", "name another model")


@dataclass(frozen=True)
class StopTraining(Hook):
    """Ends the training, as `HookResult.stop` says; with unit `steps` it ends the updates of the iteration.

    Args:
        when: where nothing more is to be done: StopTraining(when=Above("approximate_kl", 0.02), unit="steps") is PPO's
            early stop.

    Example:
        >>> from agentrl_core.schedule import Above, StopTraining
        >>> StopTraining(when=Above("approximate_kl", 0.02), unit="steps").is_due(7)
        True
    """


@dataclass(frozen=True)
class FreezeModel(Hook):
    """Leaves out the updates of a model: a warm-up of the others, alternation, delay.

    `FreezeModel("policy", until=51)` trains the critic alone for 50 iterations; `FreezeModel("policy", every=2)` trains
    the policy in every other iteration (delayed policy updates of TD3, arXiv:1802.09477). Its `when` is read as of the
    iteration's begin.

    Args:
        model: name of the model.

    Example:
        >>> from agentrl_core.schedule import FreezeModel
        >>> [FreezeModel("policy", until=3).is_due(iteration) for iteration in (1, 2, 3)]
        [True, True, False]
    """

    model: str = option(filled=True)

    def check_options(self) -> None:
        """Models are frozen for iterations."""
        self.require(self.unit == "iterations", "unit", "models are frozen for whole iterations: give 'iterations'")


@dataclass(frozen=True)
class LimitStaleness(Hook):
    """Holds back what is generated ahead of the trainer: the staleness gate of asynchronous training.

    `Collector(..., staleness=s)` begins up to s iterations behind the open one. When the batch of iteration k is asked
    for, iterations up to k + min(s, at_most) are begun, as far as they are not; the smallest `at_most` of all actions
    that hold counts. What has begun goes on and is trained. So a batch that was begun by this is at most `at_most`
    policy versions old, and with 0 everything waits for the trainer. It is AReaL's gate (arXiv:2505.24298) counted in
    batches, with an eta that may follow a metric. What it follows is read as of the begin of iteration k: what the
    iterations before were closed with.

    - hold back while the policies are far apart: LimitStaleness(0, when=Above("approximate_kl", 0.02));
    - let on while enough samples count: LimitStaleness(Choice((0, 4), by=Above("effective_fraction", 0.8)));
    - aim at an age: LimitStaleness(PID("tokens.staleness", target=1, start=2, proportional=-1, at_least=0, at_most=4)).

    Args:
        at_most: how many iterations are begun behind the open one, a whole number of at least 0.

    Example:
        >>> from agentrl_core import recipes
        >>> from agentrl_core.schedule import Above, LimitStaleness
        >>> recipe = recipes.AREAL.replace(hooks=LimitStaleness(0, when=Above("approximate_kl", 0.02)))
    """

    at_most: int = option(0, at_least=0)

    def check_options(self) -> None:
        """Iterations are begun, not steps."""
        self.require(self.unit == "iterations", "unit", "iterations are begun ahead: give 'iterations'")


@dataclass(frozen=True)
class SkipStep(Hook):
    """`update.step` leaves out the step, and forgets its gradients: where what it said is not to be trusted.

    Args:
        model: name of the model whose steps these are.

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
        """None: the step is left out."""


@dataclass(frozen=True)
class RepeatStage(Hook):
    """Further passes of a stage behind the updates, until what a pass said is fine (FixPO's fix-up phase).

    Args:
        stage: the stage whose losses each pass trains; see `loss.Train`.
        at_most: how many passes, at least 1.
        when: passes go on where this is not 0 after the last one: Above("max_kl", 0.2).

    Example:
        >>> from agentrl_core.schedule import Above, RepeatStage
        >>> RepeatStage("fixup", at_most=5, when=Above("approximate_kl", 0.2)).at_most
        5
    """

    stage: str = option(filled=True)
    at_most: int = option(1, at_least=1)

    def check_options(self) -> None:
        """Passes belong to iterations."""
        self.require(self.unit == "iterations", "unit", "passes are repeated behind all updates: give 'iterations'")
