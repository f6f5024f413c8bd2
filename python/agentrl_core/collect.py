"""Collect: select, rollout, reward, admit, until a batch is full; and the way back, from an update to the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from agentrl_core import _core
from agentrl_core.component.column import draw
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine, Sampling
from agentrl_core.env.base import Environment, Split, Task
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Independent
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

    Raises:
        RecipeError: the recipe cannot run.

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
    ) -> None:
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
        self._iteration = 0 if store is None else store.iteration
        self._tasks = _core.Batch.empty() if store is None else store._core.tasks()
        self._state: dict[str, Any] = {} if store is None else store.state.get("components", {})

    @property
    def iteration(self) -> int:
        """The iteration that is next: 0 at first, or where the store stopped."""
        return self._iteration

    def __call__(self, *, tasks: int, group_size: int) -> Batch:
        """The batch of this iteration.

        Args:
            tasks: number of groups to admit.
            group_size: trajectories that a group starts with (planners that have a budget of their own use that).

        Returns:
            A batch with column `score` at level `draw`. It can hold fewer groups than asked for when admission rejects
            many.

        Raises:
            InvalidInputError: `tasks` or `group_size` is not positive, or there are not enough tasks.
            KeyboardInterrupt: interrupted; the trajectories so far are in the store, undrawn.
        """
        if tasks < 1 or group_size < 1:
            raise InvalidInputError(f"tasks={tasks} and group_size={group_size}: both must be at least 1")
        if self.store is not None and self.store.has_batch(self._iteration):
            return self._scored(self.store.batch(self._iteration))
        parts: list[Batch] = []
        forest = Forest(iteration=self._iteration, seed=self.seed, entropies=self.engine.entropy_estimator)
        try:
            self._fill(parts, forest, tasks, group_size)
        except BaseException:
            self._save_unfinished(parts, forest)
            raise
        batch, changed_tasks = self._with_tasks(parts[0] if len(parts) == 1 else Batch.concat(parts))
        batch = batch.with_state(self._state)
        if self.store is not None:
            batch = self.store.rebase(batch)
            self.store.append(batch, iteration=self._iteration)
            self.store.flush()
        self._tasks = changed_tasks
        return batch

    def update(self, batch: Batch, metrics: Mapping[str, object], *, checkpoint: str | None = None) -> None:
        """Close the iteration: its computed columns and metrics go to the store, and the next one begins.

        Args:
            batch: the batch that was trained, with its computed columns.
            metrics: `Updates.metrics`, and whatever else should be kept; saved as JSON (NaN and infinity as null).
            checkpoint: name of the user's own checkpoint of the weights after this update, so that a restart knows
                which weights belong to the data.
        """
        if self.store is not None:
            state = {"metrics": dict(metrics), "checkpoint": checkpoint, "components": self.recipe.next_state(batch)}
            self.store.close_iteration(batch, state)
        self._state = self.recipe.next_state(batch)
        self._iteration += 1

    def _fill(self, parts: list[Batch], forest: Forest, tasks: int, group_size: int) -> None:
        """Roll out, reward and admit until `tasks` groups are in, at most the admission's number of rounds."""
        recipe = self.recipe
        pool = self._task_pool()
        most = max(tasks, min(len(pool), tasks * recipe.admit.rounds))
        order = recipe.select.choose(len(pool), self._iteration, most, self.seed)
        admitted = used = 0
        for _ in range(recipe.admit.rounds):
            chosen = [pool[index] for index in order[used : used + tasks - admitted]]
            if not chosen:
                break
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
            )
            used += len(chosen)
            # In the list before anybody's code can fail on it: what was rolled out is kept.
            parts.append(forest.freeze())
            batch = parts[-1] = self._scored(parts[-1])
            groups = batch.keys("group_id", "draw")
            accepted = recipe.admit(batch.column("score", "draw"), groups)
            if not accepted.all():
                parts[-1] = batch.select_draws(np.flatnonzero(accepted[groups]))
            admitted += int(accepted.sum())
            if admitted >= tasks:
                break

    def _scored(self, batch: Batch) -> Batch:
        return self.recipe.score(batch.with_state(self._state))

    def _task_pool(self) -> list[Task]:
        if self._pool is None:
            self._pool = self.environment.tasks(self._pool_size)
        return self._pool

    def _with_tasks(self, batch: Batch) -> tuple[Batch, _core.Batch]:
        """The batch with the task statistics that it changes, and all of them after it."""
        with_changes, all_tasks = batch._core.advance_tasks(self._tasks)
        return Batch(with_changes), all_tasks

    def _save_unfinished(self, parts: list[Batch], forest: Forest) -> None:
        """Keep what an interrupted iteration generated: stored, but drawn by nobody."""
        if self.store is None:
            return
        forest.abort()
        batch = Batch.concat([*parts, forest.freeze()]).select_draws([])
        if len(batch.nodes):
            self.store.append(self.store.rebase(batch), iteration=self._iteration, partial=True)
            self.store.flush()


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
    forest = Forest(iteration=-1, seed=seed)
    roll_out(
        forest,
        engine,
        environment,
        Independent(),
        environment.tasks(tasks, split=split),
        group_size=1,
        sampling=Sampling() if sampling is None else sampling,
        context_tokens=context_tokens,
        progress=progress,
    )
    return float(np.mean(forest.freeze().column("success", "draw")))
