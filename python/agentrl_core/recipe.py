"""Recipe: one published system as a value, a component or none for each phase."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

from agentrl_core import renames
from agentrl_core._util.json_text import is_deeper, is_unicode
from agentrl_core._util.near_names import near_names
from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.component.column import Column
from agentrl_core.component.component import PHASES, Component, find_component
from agentrl_core.component.controller import Choice, Controller
from agentrl_core.component.draw_subset import write_masked
from agentrl_core.component.requirements import (
    check_columns,
    check_models,
    check_recomputed,
    check_weight_is_read,
    model_columns_of,
    require_batch,
    require_columns,
    require_finite_credit,
    require_made_columns,
)
from agentrl_core.component.schedule import Changing
from agentrl_core.component.state import (
    SELECTION,
    IterationRecord,
    State,
    Stateful,
    StatefulComponent,
    pack_state,
    unpack_state,
)
from agentrl_core.component.toml import toml_lines
from agentrl_core.data.batch import Batch
from agentrl_core.data.fact_columns import Declared
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.update.old_logprobs import with_old_logprobs

if TYPE_CHECKING:
    from torch import distributed

    from agentrl_core.loss import Loss, Train
    from agentrl_core.model.ranks import Group
    from agentrl_core.replay import Replay
    from agentrl_core.rollout import Rollout
    from agentrl_core.schedule import Hook
    from agentrl_core.select import Admission, Selector
    from agentrl_core.update.hooks import HookResult
    from agentrl_core.update.minibatches import Updates

Shared = Literal["each", "split", "owner"]
Chain = BatchComponent | tuple[BatchComponent, ...]

_COLLECTION = ("select", "rollout", "reward", "admit")
_CREDIT = ("reward", "advantage", "weight")
_CHAINS = (*_CREDIT, "loss", "replay", "hooks")  # phases that may have several components
_REMEMBERING = (
    "select",
    "rollout",
    *_CREDIT,
    "replay",
)  # phases whose components may have state, in the order in which `next` runs


def _default(package: str, name: str) -> Callable[[], Any]:
    """Return a component with default options, imported when the first recipe is created."""
    return lambda: cast("Any", getattr(importlib.import_module(f"agentrl_core.{package}"), name)())


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A published system as a value: components by phase and options of the optimisation.

    Recipes can be printed, compared, and converted to and from TOML. Phases reward, advantage and weight hold one
    component or a tuple: a chain that runs in order, in which each component reads the columns of those before. Phase
    loss holds one loss, or a tuple of `loss.Train`, each with the model that it trains and its stage.

    Args:
        name: unique, descriptive key.
        source: where the system is published.
        select: which tasks an iteration rolls out.
        rollout: the program that makes the trajectories of a task.
        reward: turns the environment's reward into `score`.
        admit: which finished groups enter the batch.
        advantage: turns scores into `advantage`. A recipe whose losses read advantages needs one.
        weight: makes `weight`, a factor of the advantage alone, and `keep`, the loss mask of draws or tokens; or None.
        loss: what the updates minimise. A recipe that trains needs one.
        replay: which stored trajectories are drawn again; one or a chain, or None.
        hooks: actions on models, learning rates and the loop, between and after optimizer steps; one or a chain, or
            None.
        epochs: passes over a batch, at least 1.
        minibatches: optimizer steps of a pass, at least 1.
        old_logprob: old log-probs of the ratio of fresh draws: `behaviour`, those recorded when sampling; or
            `recomputed`, column `recomputed_logprob`, which `arl.annotate` computes with the policy. For stored draws
            phase replay decides.
        shared: how branches that share a sampled step count it: `each` counts it fully, `split` divides it equally,
            `owner` counts it only in the first draw of the update that holds it.
        frozen: names of further models whose outputs it reads and that no loss and no hook changes; see `check`.

    Raises:
        RecipeError: an option has the wrong type or is out of range.

    Example:
        >>> from agentrl_core import advantage, loss
        >>> from agentrl_core.recipe import Recipe
        >>> recipe = Recipe(name="mine", advantage=advantage.GroupRelative(), loss=loss.Policy())
        >>> recipe.check()
        >>> Recipe.from_toml(recipe.to_toml()) == recipe
        True
        >>> recipe.replace(epochs=2).epochs
        2
    """

    name: str
    source: str = ""
    select: Selector = field(default_factory=_default("select", "Uniform"))
    rollout: Rollout = field(default_factory=_default("rollout", "Independent"))
    reward: Chain = field(default_factory=_default("reward", "OutcomeScore"))
    admit: Admission = field(default_factory=_default("select", "AcceptAll"))
    advantage: Chain | None = None
    weight: Chain | None = None
    loss: Loss | Train | tuple[Loss | Train, ...] | None = None
    replay: Replay | tuple[Replay, ...] | None = None
    hooks: Hook | tuple[Hook, ...] | None = None
    epochs: int = 1
    minibatches: int = 1
    shared: Shared = "each"
    old_logprob: Literal["behaviour", "recomputed"] = "behaviour"
    frozen: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for option in ("name", "source"):
            text = getattr(self, option)
            self._require(isinstance(text, str) and is_unicode(text), option, "give a text that is Unicode")
        self._require(bool(self.name), "name", "give a text that is not empty")
        frozen: object = self.frozen
        if isinstance(frozen, list):  # of a TOML document
            frozen = tuple(frozen)
            object.__setattr__(self, "frozen", frozen)
        are_names = isinstance(frozen, tuple) and all(isinstance(name, str) and name for name in frozen)
        self._require(are_names, "frozen", "give a tuple of names of models")
        for option in ("epochs", "minibatches"):
            value = getattr(self, option)
            is_integer = isinstance(value, int) and not isinstance(value, bool)
            self._require(is_integer and value >= 1, option, "give a whole number of at least 1")
        for option, known in (("shared", get_args(Shared)), ("old_logprob", ("behaviour", "recomputed"))):
            remedy = "give one of " + ", ".join(map(repr, known))
            self._require(getattr(self, option) in known, option, remedy)
        for phase in PHASES:
            links = getattr(self, phase)
            if isinstance(links, tuple) and phase in _CHAINS and len(links) < 2:
                # A chain of one component becomes the component, an empty chain None: equal recipes compare equal.
                object.__setattr__(self, phase, links[0] if links else None)
            if isinstance(links, tuple) and phase not in _CHAINS:
                raise RecipeError(
                    f"recipe {self.name!r}: phase {phase} takes one component, not a chain; remove the tuple"
                )
            for component in cast("tuple[object, ...]", self.chain(phase)):
                if isinstance(links, tuple) and isinstance(component, Choice) and None in component.of:
                    raise RecipeError(
                        f"recipe {self.name!r}: a Choice in the chain of phase {phase} has None, but states are stored "
                        f"by position in the chain; choose between components instead"
                    )
                if not isinstance(component, Component):
                    remedy = f"give one of agentrl_core.{PHASES[phase]}"
                    if isinstance(component, type) and issubclass(component, Component):
                        remedy = f"create an instance: {component.__name__}(...)"
                    raise RecipeError(
                        f"recipe {self.name!r}: {component!r:.200} is not a component of phase {phase}; {remedy}"
                    )
                if component.phase != phase:
                    remedy = (
                        f", but of phase {component.phase}; move it there"
                        if component.phase
                        else f"; give one of agentrl_core.{PHASES[phase]}, or set phase = {phase!r} in your own class"
                    )
                    raise RecipeError(
                        f"recipe {self.name!r}: {component!r:.200} is not a component of phase {phase}{remedy}"
                    )
        places = [(training.stage, training.model, training.where) for training in self._trainings]
        for stage, model, where in places:
            if places.count((stage, model, where)) > 1:
                raise RecipeError(
                    f"recipe {self.name!r}: stage {stage!r} has more than one loss of model {model!r}; add them with "
                    f"loss.Sum, or move one to another stage: loss.Train(..., stage=...)"
                )

    def chain(self, phase: str) -> tuple[Component, ...]:
        """Return the components of a phase in the order they run."""
        value = getattr(self, phase)
        return () if value is None else value if isinstance(value, tuple) else (value,)

    def losses(self, stage: str = "update") -> tuple[Train, ...]:
        """Return the losses of a stage in order, each with its model, epochs and minibatches.

        Raises:
            RecipeError: the stage has no loss.
        """
        trainings = tuple(training for training in self._trainings if training.stage == stage)
        if not trainings:
            stages = ", ".join(dict.fromkeys(training.stage for training in self._trainings))
            remedy = f"use one of: {stages}" if stages else "add a loss: replace(loss=...)"
            raise RecipeError(f"recipe {self.name!r}: phase loss has no component for stage {stage!r}; {remedy}")
        return trainings

    @functools.cached_property
    def _trainings(self) -> list[Train]:
        links = cast("tuple[Loss | Train, ...]", self.chain("loss"))
        if not links:
            return []
        from agentrl_core.loss import Train

        trainings = [link if isinstance(link, Train) else Train(link) for link in links]
        return [
            dataclasses.replace(
                each, epochs=each.epochs or self.epochs, minibatches=each.minibatches or self.minibatches
            )
            for each in trainings
        ]

    def replace(self, **phases: Any) -> Self:
        """Return the recipe with some components or options replaced.

        Raises:
            RecipeError: the phase or option does not exist, or its value is not valid.
        """
        known = [option.name for option in dataclasses.fields(self)]
        for name in phases:
            if name not in known:
                remedy = near_names(name, known, f"use one of: {', '.join(known)}")
                raise RecipeError(f"recipe {self.name!r}: there is no {name!r} to replace; {remedy}")
        return dataclasses.replace(self, **phases)

    def check(self, batch: Batch | None = None, *, facts: Declared | None = None) -> None:
        """Raise an error if the recipe cannot run. A recipe without advantage, weight and loss only collects.

        A model whose outputs are read must be trained by a loss, moved by a hook, or frozen: `policy`, `proximal`,
        `reference`, `reward_reference` and the names of the option `frozen` may stay as they are. So a critic that is
        read and never trained is an error, unless a batch with its columns is given.

        Args:
            batch: if given, it must already contain the columns that only models compute; otherwise they are annotated
                later.
            facts: if given, all facts that the environment declares besides its reward: by level, the kind of each
                name.

        Raises:
            RecipeError: a phase has no component, a component needs a column that no component makes, a model is read
                that nothing trains, moves or declares frozen, or a column `weight` is made that no loss applies.
        """
        only_collects = batch is None and not any(self.chain(phase) for phase in ("advantage", "weight", "loss"))
        phases = _COLLECTION if only_collects else (*_COLLECTION, "advantage", "weight", "loss", "hooks")
        check_columns(self.name, self._links(phases), batch, facts)
        if batch is None and not only_collects:
            trained = {training.model for training in self._trainings}
            check_models(self.name, self.model_columns, trained, self.chain("hooks"), self.frozen)
            check_weight_is_read(self.name, self.chain("weight"), (each.loss for each in self._trainings))
        if batch is not None and self.old_logprob == "recomputed":
            check_recomputed(self.name, (each.loss for each in self._trainings), batch)

    def credit(self, batch: Batch) -> Batch:
        """Return the batch with its credit: the rest of phase reward, then the columns of phases advantage and weight.

        Phase reward usually runs during collection, because admission reads scores; it runs here if the batch has no
        score yet. Its components that need a column of a model (`annotate`), and those after them, always run here. The
        recipe and its options are recorded in the batch (`Batch.with_recipe`).

        Raises:
            RecipeError: the recipe has no advantage, or a component needs a column that no component makes.
        """
        require_batch(batch)
        check_columns(self.name, self._links(_CREDIT), batch)
        if not all(batch.has(column.name, column.level) for column in self.collected_columns):
            batch = self.score(batch)
        recipe = self._of(batch)
        _, waiting = recipe._reward()  # noqa: SLF001 - itself, as it is in the iteration
        for phase, links in (("reward", waiting), *((phase, _places(recipe, phase)) for phase in _CREDIT[1:])):
            batch = recipe._run(phase, links, batch)  # noqa: SLF001
        require_finite_credit(self.name, self._links(_CREDIT), batch)
        return batch.with_recipe(self.name, self._text)

    @functools.cached_property
    def _text(self) -> str:
        """The recipe as JSON text, which each batch records."""
        return json.dumps(self.to_dict())

    def score(self, batch: Batch, states: Mapping[str, State] | None = None) -> Batch:
        """Return the batch with the columns of phase reward, up to the first component that needs a model.

        Args:
            batch: the batch of an iteration.
            states: states of components at the start of the iteration, which are recorded in the batch
                (`with_states`); None: those that it has.
        """
        batch = batch if states is None else self.with_states(batch, states)
        recipe = self._of(batch)
        return recipe._run("reward", recipe._reward()[0], batch)  # noqa: SLF001 - itself, as it is in the iteration

    def _of(self, batch: Batch) -> Self:
        """Return the recipe of a batch's iteration, with the states recorded in the batch."""
        return self.at(_iteration(batch), unpack_state(batch.state))

    @property
    def collected_columns(self) -> tuple[Column, ...]:
        """Columns that phase reward makes during collection: those before the first component that needs a model."""
        return tuple(column for _, link in self._reward()[0] for column in link.makes)

    @property
    def model_columns(self) -> tuple[Column, ...]:
        """Columns that only models compute: for each, call `annotate(batch, column.name, models[column.model])`.

        Example:
            >>> from agentrl_core import loss, recipes
            >>> recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1))).model_columns
            (token('reference_logprob'),)
        """
        return model_columns_of([link for phase in PHASES for link in self.chain(phase)], self.old_logprob)

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models of `model_columns`, such as `reference`."""
        return tuple(dict.fromkeys(str(column.model) for column in self.model_columns))

    @functools.cached_property
    def needs_losses(self) -> bool:
        """Whether a component learns from the losses of draws: close the iteration with `updates.with_losses()`."""
        return any(link.needs_losses for phase in PHASES for link in self.chain(phase))

    def next_states(self, states: Mapping[str, State], closed: IterationRecord) -> dict[str, State]:
        """Return the states of all stateful components after an iteration, which the next one starts with.

        Args:
            states: states at the start of the iteration, by the places of components (`place_of`).
            closed: the iteration.
        """
        recipe = self.at(closed.iteration, states)
        following = dict(states)
        for place, controller in self.controllers.items():
            following[place] = controller.next(states.get(place) or controller.initial_state(), closed)
        for phase in _REMEMBERING:
            for key, link in recipe.components(phase):
                if isinstance(link, Stateful):
                    where = getattr(link, "where", None)
                    visible_record = closed if where is None else closed.with_draws_only(where.holds(closed.batch))
                    state = link.next(states.get(key, link.initial_state()), visible_record)
                    following |= {key: state} if state else {}
        if self.hooks is not None:
            before, metrics = states.get("actions", {}), closed.metrics
            following["actions"] = {"steps": before.get("steps", 0) + round(metrics.get("updates", 0.0))}
            hooks = cast("tuple[Any, ...]", recipe.chain("hooks"))
            own_models = {hook.source for hook in hooks if getattr(hook, "own_steps", False)} - {"policy"}
            if own_models:
                counts_before = before.get("own", {})
                step_counts = {
                    model: counts_before.get(model, 0) + round(metrics.get(f"{model}.updates", 0.0))
                    for model in own_models
                }
                following["actions"]["own"] = step_counts
        return following

    def with_states(self, batch: Batch, states: Mapping[str, State]) -> Batch:
        """Record states in a batch, without those of select and replay, which may be large."""
        recorded_states = {key: state for key, state in states.items() if not key.startswith(("select[", "replay["))}
        return batch.with_state(pack_state(recorded_states) | {k: v for k, v in batch.state.items() if k == SELECTION})

    def at(self, iteration: int, states: Mapping[str, State] | None = None) -> Self:
        """Return the recipe of an iteration, with each changing value replaced by a number, name or component.

        Args:
            iteration: numbered from 0.
            states: states of components at the start of the iteration, by place; None: the initial states.
        """
        if type(iteration) is not int or iteration < 0:
            raise InvalidInputError(f"iteration={iteration!r} is not possible; give a whole number of at least 0")
        if not self._changing:
            return self
        phases = dict[str, Any]()
        for phase in PHASES:
            links: tuple[Any, ...] = self.chain(phase)
            current_links = tuple(link.at(iteration, states, place_of(phase, n, link)) for n, link in enumerate(links))
            if any(new is not old for new, old in zip(current_links, links, strict=True)):
                current_links = tuple(link for link in current_links if link is not None)
                phases[phase] = current_links if phase in _CHAINS else current_links[0]
        return dataclasses.replace(self, **phases) if phases else self

    @property
    def controllers(self) -> dict[str, Controller]:
        """Return the recipe's controllers by place, such as `loss[0].Policy.kl.coefficient`."""
        return {place: value for place, value in self._changing.items() if isinstance(value, Controller)}

    @functools.cached_property
    def _changing(self) -> dict[str, Changing]:
        """The options that change during a run (schedules, controllers and choices), by place."""
        return {
            place: value
            for phase in PHASES
            for key, link in self.components(phase)
            for place, value in link.changing(key)
        }

    def _links(self, phases: tuple[str, ...]) -> dict[str, tuple[Component, ...]]:
        """Components by phase, without phase advantage if the recipe has none and its losses read none."""
        links = {phase: self.chain(phase) for phase in phases}
        reads = any(column.name == "advantage" for training in self._trainings for column in training.loss.needs)
        if self._trainings and not reads and not links.get("advantage"):
            links.pop("advantage", None)
        return links

    def _reward(self) -> tuple[list[_Place], list[_Place]]:
        """Split phase reward: components that run during collection, and those from the first that needs a model."""
        places = _places(self, "reward")
        waits = (place for place, link in places if any(column.model for column in link.needs))
        first = next(waits, len(places))
        return places[:first], places[first:]

    def _run(self, phase: str, places: list[_Place], batch: Batch) -> Batch:
        """Run the components one after the other, each with its state."""
        states = batch.state
        for place, link in places:
            run: Callable[[Batch], Batch] = cast("BatchComponent", link)
            if isinstance(link, StatefulComponent):
                state = states.get(place_of(phase, place, link))
                run = functools.partial(
                    link.add_columns, link.initial_state() if state is None else unpack_state(state)
                )
            where = cast("BatchComponent", link).where
            result = run(batch) if where is None else write_masked(batch, where.holds(batch), run, link.makes)
            batch = require_made_columns(self.name, phase, link, result)
        return batch

    def updates(
        self,
        batch: Batch | None,
        *,
        stage: str = "update",
        seed: int = 0,
        models: Mapping[str, Any] | None = None,
        draw_losses: bool | None = None,
        group: distributed.ProcessGroup | None = None,
    ) -> Updates:
        """Return the optimizer steps of a batch, to iterate over: those of each loss of a stage in turn.

        On several ranks of torch.distributed all call it, and all iterate. The first has the batch and plans; the
        others give None, and get their part of each step.

        Args:
            batch: has the columns that the losses need; in stage `update`, its credit and the columns of models.
            stage: stage of the losses; see `loss.Train`.
            seed: for the order of draws in minibatches.
            models: PyTorch models by name, which hooks of the recipe modify, or None.
            draw_losses: record the loss of each draw, for `Updates.with_losses`. In the layout `tree`, branches then
                have rows of their own for the tokens that they share. None: if the recipe needs it (`needs_losses`).
            group: the ranks that make the steps together. None: those of torch.distributed, or this process alone.

        Raises:
            RecipeError: a column is missing (the message shows the call that adds it), or the stage has no loss.
            InvalidInputError: tokens were sampled from a distribution that the ratios or weights are not of; or another
                rank than the first has a batch.
        """
        from agentrl_core.update.minibatches import Updates

        among, trained_batches = _ranks_of(group), list[Batch]()

        def prepare() -> tuple[int, dict[str, Any]]:
            require_batch(batch)
            trained_batches.append(self._trained_batch(cast("Batch", batch), stage))
            return _iteration(trained_batches[0]), unpack_state(trained_batches[0].state)

        if among is None:
            iteration, states = prepare()
        else:
            from agentrl_core.model.collectives import check_first_has, from_first

            check_first_has(batch, among)
            iteration, states = from_first(prepare, among)
        trained, recipe, between = trained_batches[0] if trained_batches else None, self.at(iteration, states), None
        if stage == "update" and (self.hooks is not None or any(c.every == "step" for c in self.controllers.values())):
            from agentrl_core.update.hooks import HookRunner

            between = HookRunner(self, trained, iteration, states, models or {}, group=among)
        repeated = {repeat.stage: recipe.losses(repeat.stage) for _, repeat in (between.repeats() if between else ())}
        return Updates(
            trained,
            recipe.losses(stage),
            shared=recipe.shared,
            seed=seed,
            between=between,
            stages=repeated,
            metrics_of_all=bool(self.controllers),
            draw_losses=self.needs_losses if draw_losses is None else draw_losses,
            group=among,
        )

    def _trained_batch(self, batch: Batch, stage: str) -> Batch:
        """Check a batch before its updates, and return it with its old log-probs."""
        from agentrl_core.update.check_sampling import check_sampling

        if stage == "update":
            self.check(batch)
        for training in self.losses(stage):
            require_columns(f"recipe {self.name!r}", training.needs, batch, stage)
        batch_with_logprobs = with_old_logprobs(batch, self.old_logprob)
        check_sampling(self, batch_with_logprobs, self.losses(stage))
        return batch_with_logprobs

    def run_hooks(self, updates: Updates, **models: Any) -> HookResult:
        """Run the recipe's hooks after the updates of an iteration: they modify models in place, under `no_grad`.

        Args:
            updates: the finished updates.
            models: PyTorch models by the names that hooks use, besides those passed to `updates`.

        Raises:
            InvalidInputError: a model that a hook names was not given.
        """
        from agentrl_core.update.hooks import HookResult

        return HookResult() if updates.between is None else updates.between.finish(updates.metrics, models)

    def components(self, phase: str) -> list[tuple[str, Any]]:
        """Return the components of a phase with their places, such as `loss[0].Policy`."""
        return [(place_of(phase, number, link), link) for number, link in _places(self, phase)]

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as a table of plain values and one table per component.

        A phase that is None is left out, or an empty list if it is not None by default.
        """
        table: dict[str, Any] = {}
        for option in dataclasses.fields(self):
            value = getattr(self, option.name)
            if value is not None and value != ():
                table[option.name] = _plain(value)
            elif option.name in _CHAINS and option.default_factory is not dataclasses.MISSING:
                table[option.name] = []
        return dict(sorted(table.items(), key=lambda entry: isinstance(entry[1], (dict, list))))

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Self:
        """Create a recipe from the output of `to_dict`.

        Raises:
            RecipeError: a key, component or option is unknown or not valid.
        """
        if not isinstance(table, Mapping):
            raise RecipeError(f"table={table!r:.200} is not a recipe; give a table made by to_dict")
        if is_deeper(table, _DEEPEST):
            deep = [key for key, value in table.items() if is_deeper(value, _DEEPEST - 1)]
            raise RecipeError(f"recipe: {deep} is nested more than {_DEEPEST} deep; give the table of to_dict")
        known = [option.name for option in dataclasses.fields(cls)]
        name, values = table.get("name"), dict[str, Any]()
        title = "recipe" if name is None else f"recipe {name!r}"
        for key, value in renames.table().recipe(table).items():
            if key not in known:
                remedy = near_names(str(key), known, f"use one of: {', '.join(known)}")
                raise RecipeError(f"{title}: {key!r} is unknown; {remedy}")
            if key in PHASES:
                links = value if key in _CHAINS and isinstance(value, list) else [value]
                for link in links:
                    if not isinstance(link, Mapping):
                        raise RecipeError(
                            f"{title}: {key}={link!r:.80} is not a table; write [{key}] with component = ..."
                        )
                try:
                    chain = tuple(find_component(f"agentrl_core.{PHASES[key]}", link) for link in links)
                except RecipeError as error:
                    place = "" if key in str(error) else f"{key}: "
                    raise type(error)(f"{title}: {place}{error}") from None
                values[key] = chain if isinstance(value, list) else chain[0]
            else:
                values[key] = value
        if name is None:
            raise RecipeError('recipe: the name is missing; add the line name = "..."')
        return cls(**values)

    def to_toml(self) -> str:
        """Return the recipe as a TOML document; `from_toml` reads it back to an equal recipe."""
        return "\n".join(toml_lines(self.to_dict()))

    @classmethod
    def from_toml(cls, source: str | Path) -> Self:
        """Read a recipe from TOML text, or from a file whose path ends in `.toml`.

        Args:
            source: the text of a TOML document, or the path of one: a `Path`, or a string that ends in `.toml`.

        Raises:
            RecipeError: the document is not TOML or not a recipe.
            FileNotFoundError: the file does not exist.
        """
        if not isinstance(source, (str, Path)):
            raise RecipeError(f"source={source!r:.200} is not a recipe; give the text of a TOML document, or its path")
        is_path = isinstance(source, Path) or source.endswith(".toml")
        text = Path(source).read_text(encoding="utf-8") if is_path else str(source)
        try:
            table = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, UnicodeEncodeError, RecursionError) as error:
            where = str(source) if is_path else f"the recipe text {text!r:.60}"
            remedy = "correct it there" if is_path or "\n" in text else "give TOML, or a path that ends in .toml"
            raise RecipeError(f"{where} is not valid TOML: {error}; {remedy}") from None
        return cls.from_dict(table)

    def _require(self, condition: bool, option: str, remedy: str) -> None:  # noqa: FBT001 - as in assert
        if not condition:
            setting = f"{option}={getattr(self, option)!r:.200}"
            raise RecipeError(f"recipe {self.name!r:.80}: {setting} is not possible; {remedy}")


_DEEPEST = 64
"""How deep the tables of a recipe can be nested."""
_Place = tuple[int, Component]


def _places(recipe: Recipe, phase: str) -> list[_Place]:
    return list(enumerate(recipe.chain(phase)))


def place_of(phase: str, place: int, link: Component) -> str:
    """Return the place of a component, the key of its state: `loss[0].Policy`."""
    return f"{phase}[{place}].{type(link).__name__}"


def _ranks_of(group: distributed.ProcessGroup | None) -> Group | None:
    """Return the ranks that make steps together, or None. A process that has not imported torch is alone."""
    if group is None and sys.modules.get("torch") is None:
        return None
    from agentrl_core.model.ranks import group_of_ranks

    return group_of_ranks(group)


def _iteration(batch: Batch) -> int:
    iterations = batch.column("iteration", "draw")
    return int(iterations.max()) if len(iterations) else 0


def _plain(value: Any) -> Any:
    """Return a component as a table, a chain as a list of tables, other options unchanged."""
    if isinstance(value, tuple):
        return [_plain(link) for link in value]
    return value.to_dict() if isinstance(value, Component) else value
