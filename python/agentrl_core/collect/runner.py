"""Run the program of a recipe on tasks."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from agentrl_core.collect import event_loop as loop
from agentrl_core.collect.batch_policy import WHOLE, BatchPolicy
from agentrl_core.collect.concurrency import SlotLimiter
from agentrl_core.collect.driver import BranchLimits, RolloutDriver
from agentrl_core.collect.journal import Journal
from agentrl_core.collect.model_queries import Model
from agentrl_core.collect.partial_rollouts import BatchCut, InFlightGroups
from agentrl_core.collect.prefetch import IterationTask
from agentrl_core.collect.progress import Progress
from agentrl_core.collect.recorded_episode import EnvironmentHandle
from agentrl_core.collect.token_accounting import TokenCounts
from agentrl_core.collect.warn_once import WarnOnce
from agentrl_core.component.schedule import Schedule
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine, Sampling
from agentrl_core.env.base import Task
from agentrl_core.recipe import Recipe
from agentrl_core.rollout.program import Rollout
from agentrl_core.update.sampling_use import SamplingUse

Value = TypeVar("Value")


@dataclass(frozen=True)
class CollectionSettings:
    """Engines, environments and limits of a collection; see the arguments of `Collector`.

    Concurrent iterations share `rooms`, and each requests slots in its `turn`, if it has one.
    """

    engines: Mapping[str, Engine]
    worlds: Mapping[str, EnvironmentHandle]
    sampling: Sampling
    context_tokens: int | Schedule
    turn_limit: int | Schedule | None
    call_seconds: float | Schedule | None
    concurrency: int | Mapping[str, int]
    seed: int
    notices: WarnOnce
    progress: Callable[[Progress], None] | None
    batch_policy: BatchPolicy = WHOLE
    rooms: Mapping[str, SlotLimiter] | None = None
    turn: IterationTask[Any] | None = None

    def limits(self, iteration: int) -> BranchLimits:
        """Return the limits of branches in an iteration."""

        def now(value: Any) -> Any:
            return value.at(iteration) if isinstance(value, Schedule) else value

        turns = now(self.turn_limit)
        return BranchLimits(
            round(now(self.context_tokens)),
            None if turns is None else round(turns),
            now(self.call_seconds),
            self.concurrency,
        )

    def facts(self, recipe: Recipe) -> dict[str, dict[str, Literal["number", "key"]]]:
        """Return the facts that environments and program declare: the kind of each, by level and name."""
        facts: dict[str, dict[str, Literal["number", "key"]]] = {"step": {}, "trajectory": {}}
        declared = [*(world.facts for world in self.worlds.values()), recipe.rollout.facts]
        for name, fact in ((name, fact) for table in declared for name, fact in table.items()):
            facts[fact.level][name] = fact.kind
        return facts


class ProgramRunner:
    """Run the program of a recipe on tasks, and freeze the groups.

    Args:
        setting: settings of the collection.
        recipe: the recipe of the iteration.
        iteration: its number.
        journal: journal of the iteration.
        mode: mode of the groups.
        reward: phase reward.
        statistics: statistics of a task, by its id.
        states: states of components, by place in the recipe.
        models: models that programs query, by column name.
        store: store of the run, for earlier solutions; None: no store.
        known: number of closed iterations at its start.
    """

    def __init__(
        self,
        setting: CollectionSettings,
        recipe: Recipe,
        iteration: int,
        journal: Journal,
        *,
        mode: Literal["train", "evaluate"],
        reward: Callable[[Batch], Batch],
        statistics: Callable[[str], Mapping[str, Any]],
        states: Mapping[str, Any],
        models: Mapping[str, Model],
        store: Store | None,
        known: int,
    ) -> None:
        estimator = next(iter(setting.engines.values())).entropy_estimator
        facts = setting.facts(recipe)
        self._forest = Forest(iteration=iteration, seed=setting.seed, entropies=estimator, facts=facts)
        self._watch, self._turn = setting.progress, setting.turn
        self._conductor = RolloutDriver(
            self._forest,
            setting.engines,
            setting.worlds,
            recipe.rollout,
            journal,
            sampling=setting.sampling,
            limits=setting.limits(max(iteration, 0)),
            seed=setting.seed,
            mode=mode,
            notices=setting.notices,
            reward=reward,
            statistics=statistics,
            states=states,
            models=models,
            store=store,
            known=known,
            shared=setting.rooms,
            window=setting.batch_policy.max_new_tokens,
            use=SamplingUse.of(recipe),
        )
        self._alone = setting.rooms is None

    @property
    def progress(self) -> Progress:
        """Counters so far."""
        return self._conductor.progress

    @property
    def token_counts(self) -> dict[str, TokenCounts]:
        """Counts of generated tokens for each group."""
        return self._conductor.said

    def roll_out(
        self,
        chosen: Sequence[tuple[str, Task]],
        sizes: Sequence[int],
        *,
        first: int,
        variants: Sequence[int] | None = None,
    ) -> Batch:
        """Run the program on tasks with progress reports, and return the new groups, frozen.

        Args:
            chosen: the tasks, each with the name of its world.
            sizes: requested trajectories of each group.
            first: place of the first group in the iteration.
            variants: prompt variant of each; None: no variants.
        """
        worlds = {task.task_id: world for world, task in chosen}
        tasks = [task for _, task in chosen]
        conductor, turn = self._conductor, self._turn

        def begin() -> Coroutine[Any, Any, None]:
            # Later iterations start their groups after these.
            if turn is not None:
                turn.release_next()
            return conductor.roll_out(tasks, sizes, first=first, worlds=worlds, variants=variants)

        if turn is not None:
            turn.wait_for_previous()
        self._run(begin)
        return self._forest.freeze()

    def roll_out_in_flight(
        self,
        chosen: Sequence[tuple[str, Task]],
        flight: InFlightGroups,
        *,
        programs: Callable[[int], Rollout],
        cut: BatchPolicy,
        number: int,
        wanted: int,
    ) -> tuple[Batch, BatchCut]:
        """Run groups in flight until the batch is cut; return the frozen groups of the batch, and the cut.

        Args:
            chosen: the task of each group, with the name of its world.
            flight: the groups.
            programs: returns the program for groups that started in an iteration.
            cut: rule for the cut.
            number: number of the cut in this iteration.
            wanted: number of needed groups.
        """
        worlds = {task.task_id: world for world, task in chosen}
        tasks, conductor = [task for _, task in chosen], self._conductor

        def begin() -> Coroutine[Any, Any, BatchCut]:
            return conductor.roll_out_in_flight(
                tasks, flight, worlds=worlds, programs=programs, cut=cut, number=number, wanted=wanted
            )

        landed = self._run(begin)
        return self._forest.freeze(), landed

    def _run(self, begin: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        watch, progress = self._watch, self._conductor.progress
        return loop.run(begin, None if watch is None else lambda: watch(progress), alone=self._alone)
