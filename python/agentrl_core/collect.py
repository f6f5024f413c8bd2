"""Collect: select, rollout, reward, admit, until a batch is full; and the way back, from an update to the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import numpy as np

from agentrl_core import _core
from agentrl_core.component.column import draw
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine, Sampling
from agentrl_core.env.base import Environment, Split, Task
from agentrl_core.exceptions import InvalidInputError, RecipeError, StoreError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Independent
from agentrl_core.rollout.notices import Notices
from agentrl_core.rollout.turns import roll_out


class Collector:
    """Makes the training batch of each iteration, and closes the iteration after the update.

    One call selects tasks, rolls out a group for each, runs the recipe's reward, lets the recipe admit groups, and
    repeats with further tasks until enough groups are admitted (or the admission's rounds are over). With a store the
    batch is committed before it is returned; an iteration that was committed but not closed (a kill in the middle of
    training) is given back as it is, so no task is skipped or rolled out twice.

    Args:
        engine: generates segments.
        environment: gives tasks and answers actions.
        recipe: its phases select, rollout, reward and admit are used.
        store: where everything is kept; None keeps nothing.
        seed: of task selection and of every segment.
        task_pool: the first so many training tasks of the environment are selected from.
        sampling: of every segment; the default samples at temperature 1 from the whole distribution.
        context_tokens: the longest path.
        progress: called with the number of tokens generated after each turn.
        allow_changes: go on with a run whose store was made with another recipe, seed or group size.

    Raises:
        RecipeError: the recipe cannot run.
        InvalidInputError: an argument is not what it should be; or the store was made with another recipe or seed.

    Example:
        >>> import agentrl_core as arl
        >>> from agentrl_core import engine, env, recipes, warm_start
        >>> world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
        >>> _, tokenizer = warm_start.build(world, seed=0)
        >>> script = engine.Scripted(tokenizer, lambda tokens: "<answer>12</answer>")
        >>> arl.Collector(script, world, recipes.GRPO)(tasks=2, group_size=4)
        Batch(8 draws in 2 groups, 8 trajectories, 10 nodes)
    """

    def __init__(
        self,
        engine: Engine,
        environment: Environment,
        recipe: Recipe,
        *,
        store: Store | None = None,
        seed: int = 0,
        task_pool: int = 4096,
        sampling: Sampling | None = None,
        context_tokens: int = 4096,
        progress: Callable[[int], None] | None = None,
        allow_changes: bool = False,
    ) -> None:
        _check_parts(engine, environment, recipe, store)
        if sampling is not None and not isinstance(sampling, Sampling):
            raise InvalidInputError(f"Collector: sampling={sampling!r}; give an engine.Sampling, or None")
        _check_whole("Collector", task_pool=task_pool, context_tokens=context_tokens)
        recipe.check()
        if draw("score") not in recipe.collected:
            raise RecipeError(
                f"recipe {recipe.name!r}: admission reads the score, but phase reward makes none before it waits for a "
                "column that only a model makes; begin the chain with a link that makes one, such as reward.Outcome()"
            )
        self.engine = engine
        self.environment = environment
        self.recipe = recipe
        self.store = store
        self.seed = seed
        self.sampling = Sampling() if sampling is None else sampling
        self.context_tokens = context_tokens
        self.progress = progress
        self._pool_size = task_pool
        self._pool: list[Task] | None = None
        self._notices = Notices()
        self._allow_changes = allow_changes
        self._head = _Head(0, {}, {}, _core.Batch.empty(), 0) if store is None else _Head.of(store)
        self._tasks = self._head.tasks
        """What the head's become with the batch that was collected last."""
        self._run: dict[str, Any] = {"recipe": json.loads(json.dumps(recipe.to_dict())), "seed": seed}
        self._check_run()

    @property
    def iteration(self) -> int:
        """The iteration that is next: 0 at first, or where the store stopped."""
        return self._now().iteration

    def __call__(self, *, tasks: int, group_size: int) -> Batch:
        """The batch of this iteration.

        Args:
            tasks: number of groups to admit.
            group_size: trajectories that a group starts with (planners that have a budget of their own use that).

        Returns:
            A batch with column `score` at level `draw`. It can hold fewer groups than asked for when admission rejects
            many.

        Raises:
            InvalidInputError: `tasks` or `group_size` is not positive, or there are not enough tasks; the environment
                or the planner answers with something that cannot be; or the reward of every draw is NaN.
            KeyboardInterrupt: interrupted; the trajectories so far are in the store, undrawn.
        """
        _check_whole("collect", tasks=tasks, group_size=group_size)
        self._run["group_size"] = group_size
        self._check_run()
        head = self._now()
        if self.store is not None and self.store.has_batch(head.iteration):
            return self._scored(self.store.batch(head.iteration))
        parts: list[Batch] = []
        domains: dict[str, str] = {}
        forest = Forest(iteration=head.iteration, seed=self.seed, entropies=self.engine.entropy_estimator)
        try:
            batch = self._fill(parts, domains, forest, tasks, group_size)
            with_changes, self._tasks = batch._core.advance_tasks(head.tasks, domains)
            batch = Batch(with_changes)
            if self.store is None:
                return batch
            batch = self.store.rebase(batch)
            self.store.append(batch, iteration=head.iteration)
            self.store.flush()
        except StoreError:
            raise
        except BaseException:
            self._save_unfinished(parts, forest)
            raise
        self._head = _Head.of(self.store, tasks=self._tasks)
        return batch

    def update(self, batch: Batch, metrics: Mapping[str, object], *, checkpoint: str | None = None) -> None:
        """Close the iteration: its computed columns and metrics go to the store, and the next one begins.

        The metrics get a table `collect`: how many `draws` the batch has, and how many of them are `unscored` (their
        score is not known, so that no update uses them).

        Args:
            batch: the batch that was trained, with its computed columns.
            metrics: `Updates.metrics`, and whatever else should be kept; saved as JSON (NaN and infinity as null).
            checkpoint: name of the user's own checkpoint of the weights after this update, so that a restart knows
                which weights belong to the data.

        Raises:
            InvalidInputError: the batch is of another iteration than the one that is open.
        """
        if not isinstance(batch, Batch):
            raise InvalidInputError(f"update: batch={batch!r} is no Batch; give the one that was trained")
        if not isinstance(metrics, Mapping):
            raise InvalidInputError(f"update: metrics={metrics!r} is no table; give Updates.metrics, or {{}}")
        head = self._now()
        iterations = batch.column("iteration", "draw")
        if len(iterations) and int(iterations.max()) != head.iteration:
            raise InvalidInputError(
                f"the batch is of iteration {int(iterations.max())}, and iteration {head.iteration} is open; collect "
                "its batch with collect(tasks=..., group_size=...)"
            )
        # Over the whole batch and from the state that the iteration began with, so that a restart comes to the same.
        components = self.recipe.next_state(batch.with_state(head.components))
        if self.store is None:
            # One assignment: an interrupt finds it done or not begun.
            self._head = replace(head, iteration=head.iteration + 1, components=components, tasks=self._tasks)
            return
        run = {**head.run, **self._run}
        state = {
            "metrics": {"collect": _counts(batch), **metrics},
            "checkpoint": checkpoint,
            "components": components,
            "run": run,
        }
        self.store.close_iteration(batch, state)
        self._head = _Head.of(self.store, tasks=head.tasks)

    def _now(self) -> _Head:
        """Where the loop stands, which is what the store has committed.

        A Ctrl-C can surface behind a commit and before the line that would note it here.
        """
        if self.store is not None and self._head.sequence != self.store.sequence:
            self._head = _Head.of(self.store)
        return self._head

    def _check_run(self) -> None:
        """Refuse to go on silently with another run."""
        if self.store is None or self._allow_changes:
            return
        before = self._now().run
        known = before.keys() & self._run.keys()
        changes = _changes({name: before[name] for name in known}, {name: self._run[name] for name in known})
        for name, old, new in changes:
            raise InvalidInputError(
                f"the run in {self.store.path} was made with {name}={old!r}, not {new!r}; go on with what it had, "
                "choose another directory, or insist with Collector(..., allow_changes=True)"
            )

    def _fill(self, parts: list[Batch], domains: dict[str, str], forest: Forest, tasks: int, group_size: int) -> Batch:
        """Roll out, reward and admit until `tasks` groups are in, at most the admission's number of rounds.

        The rounds are in `parts` as soon as they are rolled out, and the domains of their tasks in `domains`.
        """
        recipe = self.recipe.at(forest.iteration)
        pool = self._task_pool()
        most = max(tasks, min(len(pool), tasks * recipe.admit.rounds))
        order = recipe.select.choose(len(pool), forest.iteration, most, self.seed)
        admitted = used = drawn = scored = 0
        rewarded = False
        for _ in range(recipe.admit.rounds):
            chosen = [pool[index] for index in order[used : used + tasks - admitted]]
            if not chosen:
                break
            domains.update((task.task_id, task.domain) for task in chosen)
            roll_out(
                forest,
                self.engine,
                self.environment,
                recipe.rollout,
                chosen,
                group_size=group_size,
                sampling=self.sampling,
                context_tokens=self.context_tokens,
                first_group=used,
                progress=self.progress,
                notices=self._notices,
            )
            used += len(chosen)
            # In the list before anybody's code can fail on it: what was rolled out is kept.
            parts.append(forest.freeze())
            batch = parts[-1] = self._scored(parts[-1])
            groups, scores = batch.keys("group_id", "draw"), batch.column("score", "draw")
            drawn, scored = drawn + len(scores), scored + int(np.isfinite(scores).sum())
            rewarded = rewarded or bool(np.isfinite(batch.column("reward", "draw")).any())
            accepted = recipe.admit(scores, groups)
            if not accepted.all():
                parts[-1] = batch.select_draws(np.flatnonzero(accepted[groups]))
            admitted += int(accepted.sum())
            if admitted >= tasks:
                break
        if drawn and not scored:
            self._nothing_scored(drawn, forest.iteration, rewarded=rewarded)
        batch = Batch.concat(parts)
        # A restart scores the batch as a whole, so what came in rounds or was cut is scored again for equal scores.
        return parts[0] if len(parts) == 1 and batch.num_draws == drawn else self._scored(batch)

    def _nothing_scored(self, drawn: int, iteration: int, *, rewarded: bool) -> None:
        """Say that there is nothing to train on: an error where the environment is why."""
        found = f"none of the {drawn} draws of iteration {iteration} has a score"
        if not rewarded:
            raise InvalidInputError(
                f"{found}, because environment {type(self.environment).__name__} paid NaN in each of them, so there is "
                "nothing to train on; pay numbers in Outcome.reward"
            )
        self._notices.once("scores", f"{found}: phase reward of recipe {self.recipe.name!r} makes NaN of each reward")

    def _scored(self, batch: Batch) -> Batch:
        return self.recipe.score(batch.with_state(self._now().components))

    def _task_pool(self) -> list[Task]:
        if self._pool is None:
            self._pool = _checked_tasks(self.environment, self._pool_size, "train")
        return self._pool

    def _save_unfinished(self, parts: list[Batch], forest: Forest) -> None:
        """Keep what an interrupted iteration generated: stored, but drawn by nobody."""
        # It may have been interrupted after all was queued or even durable.
        if self.store is None or self.store.has_batch(forest.iteration):
            return
        forest.abort()
        batch = Batch.concat([*parts, forest.freeze()]).select_draws([])
        if len(batch.nodes):
            self.store.append(self.store.rebase(batch), iteration=forest.iteration, partial=True)
            self.store.flush()


@dataclass(frozen=True)
class _Head:
    """Where the loop stands after the last write of its store (or in memory, where there is none)."""

    iteration: int
    components: dict[str, Any]
    """What the components remember."""
    run: dict[str, Any]
    """Recipe, seed and size of groups that the last closed iteration was made with."""
    tasks: _core.Batch
    """Statistics of the tasks, in a batch without rows."""
    sequence: int
    """The store's last write that this was read behind."""

    @classmethod
    def of(cls, store: Store, *, tasks: _core.Batch | None = None) -> Self:
        """What a store says, but for the task statistics where they are known."""
        tasks = store._core.tasks() if tasks is None else tasks
        state = store.state
        return cls(store.iteration, state.get("components", {}), state.get("run", {}), tasks, store.sequence)


def _changes(before: Mapping[Any, Any], now: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The entries of two tables that differ: place, old and new value."""
    for key in dict.fromkeys((*before, *now)):
        old, new = before.get(key), now.get(key)
        place = f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".removeprefix(".")
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            old, new = dict(enumerate(old)), dict(enumerate(new))
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, place)
        elif old != new:
            yield place, old, new


def _counts(batch: Batch) -> dict[str, int]:
    """How many draws a batch has, and how many of them no update can use."""
    unscored = int(np.isnan(batch.column("score", "draw")).sum()) if batch.has("score", "draw") else 0
    return {"draws": batch.num_draws, "unscored": unscored}


def _check_parts(engine: object, environment: object, recipe: object, store: object) -> None:
    """Refuse what is no engine, environment, recipe or store, before anything of it is used."""
    for name, value, methods, remedy in (
        ("engine", engine, ("generate", "chat"), "give an engine, such as engine.Transformers(model, tokenizer)"),
        ("environment", environment, ("tasks", "reset"), "give an object with tasks(count) and reset(task, seed)"),
    ):
        for method in methods:
            if not hasattr(value, method):
                raise InvalidInputError(f"Collector: {name}={value!r} has no {method!r}; {remedy}")
    if not isinstance(recipe, Recipe):
        remedy = f"recipes.get({recipe!r})" if isinstance(recipe, str) else "recipes.GRPO"
        raise InvalidInputError(f"Collector: recipe={recipe!r} is no Recipe; give one, such as {remedy}")
    if store is not None and not isinstance(store, Store):
        raise InvalidInputError(f"Collector: store={store!r} is no Store; give Store.open({str(store)!r}), or None")


def _check_whole(place: str, **numbers: object) -> None:
    """Refuse what is no whole number of at least 1."""
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
            raise InvalidInputError(f"{place}: {name}={value!r}; give a whole number of at least 1")


def _checked_tasks(environment: Environment, count: int, split: Split) -> list[Task]:
    """Tasks of a split, which have to be tasks."""
    tasks = environment.tasks(count, split=split)
    for index, task in enumerate(tasks):
        if not all(isinstance(getattr(task, name, None), str) for name in ("task_id", "question", "domain")):
            raise InvalidInputError(
                f"environment {type(environment).__name__}: tasks()[{index}] is {task!r}; give env.Task(task_id, "
                "question, domain, payload), the first three of them texts"
            )
    return tasks


def evaluate(
    engine: Engine,
    environment: Environment,
    *,
    tasks: int,
    split: Split = "held_out",
    seed: int = 0,
    sampling: Sampling | None = None,
    context_tokens: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> float:
    """Share of tasks solved, one rollout each.

    Args:
        engine: generates.
        environment: gives the tasks and answers actions.
        tasks: how many of the split's tasks.
        split: `held_out` or `train`.
        seed: of every segment.
        sampling: the default samples at temperature 1 from the whole distribution.
        context_tokens: the longest path.
        progress: called with the number of tokens generated after each turn.

    Returns:
        Mean of the column `success`, in [0, 1].
    """
    _check_whole("evaluate", tasks=tasks, context_tokens=context_tokens)
    forest = Forest(iteration=-1, seed=seed)
    roll_out(
        forest,
        engine,
        environment,
        Independent(),
        _checked_tasks(environment, tasks, split),
        group_size=1,
        sampling=Sampling() if sampling is None else sampling,
        context_tokens=context_tokens,
        progress=progress,
    )
    return float(np.mean(forest.freeze().column("success", "draw")))
