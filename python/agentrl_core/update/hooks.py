"""Run a recipe's hooks between the optimizer steps of an iteration and after the last one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from agentrl_core.component.controller import Controller
from agentrl_core.component.state import State
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.schedule.hook import (
    BEGIN,
    FreezeModel,
    Hook,
    RepeatStage,
    StopTraining,
    SwapModels,
    SyncModel,
)
from agentrl_core.update.model_sync import Snapshot, blend_models, model_named, snapshot, swap_models

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from agentrl_core.data.batch import Batch
    from agentrl_core.loss import Loss, Train
    from agentrl_core.model.ranks import Group
    from agentrl_core.update.optimizer_step import Update

STEPS = "actions"
"""Key in the states of a run: the number of optimizer steps."""


class RecipeHooks(Protocol):
    """Interface of the part of `Recipe` that hooks need to run; `recipe` imports this package, not the reverse."""

    @property
    def controllers(self) -> dict[str, Controller]:
        """Return the recipe's controllers by place; see `Recipe.controllers`."""
        ...

    def at(self, iteration: int, states: Mapping[str, State] | None = None) -> RecipeHooks:
        """Return the recipe of an iteration, with its changing values resolved; see `Recipe.at`."""
        ...

    def components(self, phase: str) -> list[tuple[str, Any]]:
        """Return the components of a phase with their places."""
        ...

    def losses(self, stage: str = "update") -> tuple[Train, ...]:
        """Return the losses of a stage."""
        ...


@dataclass(frozen=True)
class HookResult:
    """Result of a recipe's hooks after the updates of an iteration.

    Attributes:
        stop: whether to end the training.
        rolled_back: whether the models were reset to the start of the iteration.
        changed: names of the models that hooks modified; save them in the checkpoint besides trained ones.
    """

    stop: bool = False
    rolled_back: bool = False
    changed: tuple[str, ...] = ()


class HookRunner:
    """Run the hooks of a recipe in one iteration, and the controllers that move with every step.

    Args:
        recipe: the recipe, with its changing values.
        batch: the trained batch; None on other ranks than the first.
        iteration: its number.
        states: states of components at the start of the iteration.
        models: models that hooks may modify, by name.
        group: the ranks that run the steps together, or None.

    Attributes:
        steps: number of optimizer steps in this iteration.
        taken: number of these steps that went through `Update.step`.
        stopped: whether the remaining updates are skipped.
    """

    def __init__(
        self,
        recipe: RecipeHooks,
        batch: Batch | None,
        iteration: int,
        states: Mapping[str, State],
        models: Mapping[str, Any],
        *,
        group: Group | None = None,
    ) -> None:
        self._recipe = recipe
        self._batch = batch
        self._group = group
        self._iteration = iteration
        self._states = dict(states)
        self._models = dict(models)
        self._actions = recipe.at(iteration, states).components("hooks")
        self._followed = {place: each for place, each in recipe.controllers.items() if each.every == "step"}
        self._of_steps: list[dict[str, float]] = []
        self._changed: dict[str, None] = {}
        self._before = int(states.get(STEPS, {}).get("steps", 0))
        self._own = {"policy": self._before, **states.get(STEPS, {}).get("own", {})}
        self.steps = self.taken = 0
        self.stopped = False
        restores = any(each.restores or getattr(each, "source", "") == BEGIN for _, each in self._actions)
        self._begin: dict[str, Snapshot] = (
            {name: snapshot(model_named(models, name, "recipe.updates")) for name in models} if restores else {}
        )

    @property
    def listens(self) -> bool:
        """Return whether any hook or controller reads the metrics of each step."""
        return bool(self._followed) or any(a.unit != "iterations" and a.when is not None for _, a in self._actions)

    def frozen(self, model: str) -> bool:
        """Return whether a hook skips the updates of a model in this iteration."""
        return any(
            isinstance(action, FreezeModel)
            and action.model == model
            and action.is_active(self._iteration, self._states, place)
            for place, action in self._actions
        )

    def step(self, update: Update, optimizer: Optimizer) -> bool:
        """Step an optimizer subject to hooks, and clear the gradients; return whether it was stepped."""
        self.taken += 1
        metrics = update.metrics() if self.listens else {}
        due = [
            action
            for place, action in self._actions
            if action.acts_in_step
            and getattr(action, "model", "") == update.model
            and self._holds(place, action, metrics)
        ]
        factors = [action.factor(self._weights(getattr(action, "column", ""), update)) for action in due]
        skipped = any(factor is None for factor in factors)
        if not skipped:
            factor = math.prod(each for each in factors if each is not None)
            rates = [group["lr"] for group in optimizer.param_groups]
            try:
                if factor != 1.0:
                    for group, rate in zip(optimizer.param_groups, rates, strict=True):
                        group["lr"] = rate * factor
                optimizer.step()
            finally:
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate
        optimizer.zero_grad()
        return not skipped

    def _weights(self, column: str, update: Update) -> Any:
        """Return a column for the draws of a step, on every rank; None if `column` is empty."""
        if not column:
            return None

        def read() -> Any:
            return np.asarray(cast("Batch", self._batch).column(column, "draw"), np.float64)[update.draws]

        if self._group is None:
            return read()
        from agentrl_core.model.collectives import from_first

        return from_first(read, self._group)

    def begin_step(self) -> None:
        """Begin an optimizer step."""
        self.steps += 1

    def end_step(self, update: Update) -> None:
        """End a step: move controllers by its metrics, and run step hooks."""
        metrics = update.metrics() if self.listens else {}
        self._own[update.model] = self._own.get(update.model, 0) + 1
        for place, action in self._after_steps():
            own_steps = self._own_number(action, update.model)
            if action.unit == "iterations" or own_steps == 0:
                continue
            # Without this check, the divergence of the last iteration would stop the next one before the policy's first
            # step, and then all later ones.
            if action.when is not None and not action.when.is_measured_by(metrics):
                continue
            if self._is_due(action, own_steps) and self._holds_after_step(place, action.when, metrics):
                self._do(action, own_steps or self._before + self.steps, self._models)
        if self._followed:
            self._of_steps.append(metrics)
            for place, controller in self._followed.items():
                if not controller.is_measured_by(metrics):
                    continue
                self._states[place] = controller.moved(self._state(place, controller), metrics)
            self._actions = self._now().components("hooks")

    def _now(self) -> RecipeHooks:
        return self._recipe.at(self._iteration, self._states)

    def loss(self, training: Train) -> Loss | None:
        """Return the loss at the current values of step controllers; None if unchanged."""
        if not self._followed:
            return None
        key = (training.model, training.where)
        return next(each.loss for each in self._now().losses(training.stage) if (each.model, each.where) == key)

    def repeats(self) -> list[tuple[str, RepeatStage]]:
        """Return the hooks that repeat a stage after the updates, with their places."""
        number = self._iteration + 1
        return [(place, each) for place, each in self._actions if isinstance(each, RepeatStage) and each.is_due(number)]

    def goes_on(self, place: str, repeat: RepeatStage, metrics: Mapping[str, float]) -> bool:
        """Return whether to run another pass, by the metrics of the last pass."""
        return repeat.when is None or self._value(place, repeat.when, metrics) != 0.0

    def finish(self, metrics: Mapping[str, float], models: Mapping[str, Any]) -> HookResult:
        """Run the hooks that act after an iteration.

        Raises:
            InvalidInputError: a model that a hook names was not given; then no model changes.
        """
        models = {**self._models, **models}
        due = [
            (place, action)
            for place, action in self._after_steps()
            if action.unit == "iterations" and self._holds(place, action, metrics)
        ]
        for _, action in due:
            for name in (getattr(action, option, BEGIN) for option in ("source", "target", "one", "other")):
                if name != BEGIN:
                    model_named(models, name, action.title())
        stop = rolled_back = False
        for _, action in due:
            if isinstance(action, StopTraining):
                stop = True
            else:
                self._do(action, self._iteration + 1, models)
                rolled_back = rolled_back or action.restores
        return HookResult(stop, rolled_back, tuple(self._changed))

    def metrics(self) -> dict[str, Any]:
        """Return the number of steps through `Update.step`, and the metrics that controllers read in each step."""
        result: dict[str, Any] = {"stepped": float(self.taken)} if self.taken else {}
        names = dict.fromkeys(name for controller in self._followed.values() for name in controller.reads)
        if self._of_steps:
            result["steps"] = {name: [metrics.get(name) for metrics in self._of_steps] for name in names}
        return result

    def _after_steps(self) -> list[tuple[str, Hook]]:
        """Return the hooks that act after a step or an iteration, with their places."""
        kinds = (SyncModel, SwapModels, StopTraining)
        return [(place, action) for place, action in self._actions if action.restores or isinstance(action, kinds)]

    def _own_number(self, action: Hook, model: str) -> int | None:
        """Return the number of a step among those of the hook's own model; 0 after a step of another model.

        None if the hook does not count the steps of one model.
        """
        if not (isinstance(action, SyncModel) and action.own_steps):
            return None
        return self._own[model] if action.source == model else 0

    def _is_due(self, action: Hook, own: int | None = None) -> bool:
        numbers = {"steps": self._before + self.steps, "steps_of_iteration": self.steps}
        return action.is_due(own or numbers.get(action.unit, self._iteration + 1))

    def _holds(self, place: str, action: Hook, metrics: Mapping[str, float]) -> bool:
        return self._is_due(action) and (action.when is None or self._value(place, action.when, metrics) != 0.0)

    def _holds_after_step(self, place: str, when: Controller | None, metrics: Mapping[str, float]) -> bool:
        """Return whether a condition would hold after the metrics of this step."""
        return when is None or when.value(when.moved(self._state(f"{place}.when", when), metrics)) != 0.0

    def _value(self, place: str, when: Controller, metrics: Mapping[str, float]) -> float:
        """Return a controller's value from the latest metrics."""
        if f"{place}.when" in self._followed and self._of_steps:
            return when.value(self._state(f"{place}.when", when))
        return when.value(when.moved(self._state(f"{place}.when", when), metrics))

    def _state(self, place: str, controller: Controller) -> State:
        return self._states.get(place) or controller.initial_state()

    def _do(self, action: Hook, number: int, models: Mapping[str, Any]) -> None:
        title = action.title()
        if isinstance(action, SyncModel):
            target = model_named(models, action.target, title)
            source = (
                self._at_begin(action.target, title)
                if action.source == BEGIN
                else model_named(models, action.source, title)
            )
            blend_models(target, source, action.share(number), title)
            self._changed[action.target] = None
        elif isinstance(action, SwapModels):
            swap_models(model_named(models, action.one, title), model_named(models, action.other, title), title)
            self._changed |= dict.fromkeys((action.one, action.other))
        elif action.restores:
            for name in self._begin:
                blend_models(model_named(models, name, title), self._at_begin(name, title), 1.0, title)
                self._changed[name] = None
        elif isinstance(action, StopTraining):
            self.stopped = True

    def _at_begin(self, name: str, title: str) -> Snapshot:
        if name not in self._begin:
            raise InvalidInputError(
                f"{title}: no copy of model {name!r} from the start of the iteration; pass the model to "
                f"recipe.updates(batch, models={{{name!r}: ...}})"
            )
        return self._begin[name]
