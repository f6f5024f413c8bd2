"""The collector: collects the training batch of each iteration, and closes the iteration."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from agentrl_core import _core
from agentrl_core.collect import event_loop as loop
from agentrl_core.collect.argument_checks import (
    check_ahead,
    check_chosen,
    check_concurrency,
    check_cut,
    check_limits,
    check_parts,
    check_seed,
    check_whole,
    checked_tasks,
    mixed_tasks,
)
from agentrl_core.collect.batch_builder import BatchBuilder, make_batch
from agentrl_core.collect.batch_policy import WHOLE, BatchPolicy
from agentrl_core.collect.evaluation_result import Evaluation
from agentrl_core.collect.event_loop import slot_limiters, trim_heap
from agentrl_core.collect.import_trajectories import imported
from agentrl_core.collect.iteration import (
    IterationInputs,
    attach_current_state,
    check_losses,
    check_stepped,
    iteration_record,
    score_again,
    with_committed_columns,
    with_counts,
)
from agentrl_core.collect.model_queries import Model
from agentrl_core.collect.partial_rollouts import make_partial_batch
from agentrl_core.collect.prefetch import IterationPrefetcher, IterationTask
from agentrl_core.collect.recorded_episode import EnvironmentHandle
from agentrl_core.collect.rollout_driver import CollectionSettings, RolloutDriver
from agentrl_core.collect.rollout_log import IterationLog, IterationLogs
from agentrl_core.collect.rollout_workers import RolloutWorkers, WorkerDriver
from agentrl_core.collect.run_state import RunState, save_tokenizer
from agentrl_core.collect.task_digest import task_digest, tasks_begun_with
from agentrl_core.collect.warn_once import WarnOnce, warn_missed_metrics, warn_unused_records
from agentrl_core.collect.worker_order import RolloutOrder, roll_out_order
from agentrl_core.component.column import draw
from agentrl_core.component.schedule import Schedule
from agentrl_core.component.state import split_arrays
from agentrl_core.data.batch import Batch
from agentrl_core.data.forest import Forest
from agentrl_core.data.store import Store
from agentrl_core.engine.base import Engine, Sampling
from agentrl_core.env.base import Environment, Split, Task
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Independent, Rollout
from agentrl_core.rollout.progress import Progress
from agentrl_core.select import Pool
from agentrl_core.select.pool import MixedTasks
from agentrl_core.update.check_sampling import SamplingUse


class Collector:
    """Collect the training batch of each iteration, and close the iteration after the update.

    One call selects tasks, runs the recipe's rollout program on each, computes rewards and admits groups. It repeats
    with more tasks until enough groups are admitted or the admission's rounds are used up. All branches run
    concurrently, on an event loop in a separate thread. A call works in scripts, in Jupyter, and in asynchronous code
    by `await asyncio.to_thread(collect, ...)`.

    With a store the batch is committed before it is returned. An iteration that was committed but not closed, because
    of a kill during training, is returned again unchanged. Responses and answers are recorded before programs see
    them, so that after a kill nothing is sampled or executed twice: the programs restart and read the recorded results.
    Without a store the same holds after a Ctrl-C in this process.

    Args:
        engine: generates segments; or a table of engines by name: each agent uses the engine of its name, otherwise the
            first.
        environment: provides tasks and answers actions; or a table of environments by name, whose tasks are mixed.
        recipe: its phases select, rollout, reward and admit are used.
        store: store of the run; None: nothing is stored.
        seed: seed of task selection and of every segment.
        task_pool: number of training tasks of each environment to select from.
        sampling: sampling of every segment; the default samples at temperature 1 from the whole distribution. One whose
            log-probs the recipe's ratios or importance weights cannot use (`top_p`, `top_k`, ...) is refused.
        context_tokens: the longest path; a number or a `Schedule` of the iteration, like the next two.
        turn_limit: most turns of a trajectory; None: no limit.
        call_seconds: longest call of an environment in seconds, after which its episode is rebuilt; None: no limit.
            Inline calls cannot be interrupted.
        concurrency: largest number of concurrent trajectories; or a table by environment name.
        staleness: number of iterations that rollouts run ahead of the trainer: the batch of iteration i is sampled by
            weights of version i - staleness and later. 0: nothing runs between two calls. The recipe may limit it
            further (`schedule.LimitStaleness`).
        batch_policy: rule for cutting the batch of an iteration, and for groups in flight at the cut; see
            `collect.BatchPolicy`. The default waits for all started groups.
        processes: number of processes of an environment that runs in processes; None: one per core.
        memory_bytes: largest memory of such a process, over all its episodes; None: no limit. A process that exceeds it
            is killed, its current step is charged, and its other episodes continue in another process.
        progress: called ten times a second with a `Progress`, in the thread that collects.
        models: models that programs query (`Group.query`), by column name: functions from token paths to one number
            each, such as a quality head. They run in a thread.
        rollout_workers: functions that roll out in other processes. The groups of a selection are divided among them:
            each function gets an order that can be pickled, sends it to a process whose collector runs
            `roll_out(order)`, and returns the batch. This collector selects, scores and stores, and its own engine only
            evaluates. The batch equals that of one process. If a worker fails, the next one gets its groups. None: roll
            out in this process.
        allow_changes: whether to continue a run whose store has another recipe, seed, group size or data set, or other
            weights than the engine.

    Raises:
        RecipeError: the recipe cannot run.
        InvalidInputError: an argument is not valid; or the store was made with another recipe or seed.

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
        engine: Engine | Mapping[str, Engine],
        environment: Environment | Mapping[str, Environment],
        recipe: Recipe,
        *,
        store: Store | None = None,
        seed: int = 0,
        task_pool: int = 4096,
        sampling: Sampling | None = None,
        context_tokens: int | Schedule = 4096,
        turn_limit: int | Schedule | None = None,
        call_seconds: float | Schedule | None = None,
        concurrency: int | Mapping[str, int] = 1024,
        staleness: int = 0,
        batch_policy: BatchPolicy = WHOLE,
        processes: int | None = None,
        memory_bytes: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        models: Mapping[str, Model] | None = None,
        rollout_workers: Sequence[Callable[[Any], Any]] | None = None,
        allow_changes: bool = False,
    ) -> None:
        check_parts(engine, environment, recipe, store)
        engines = dict(engine) if isinstance(engine, Mapping) else {"policy": engine}
        environments = dict(environment) if isinstance(environment, Mapping) else {"world": environment}
        if sampling is not None and not isinstance(sampling, Sampling):
            raise InvalidInputError(f"Collector: sampling={sampling!r:.80}; give an engine.Sampling, or None")
        SamplingUse.of(recipe).check(sampling or Sampling(), "Collector: sampling")
        processes = os.cpu_count() or 1 if processes is None else processes
        check_whole("Collector", task_pool=task_pool, processes=processes)
        check_concurrency(concurrency, list(environments))
        check_ahead({} if rollout_workers else engines, staleness)
        check_seed(seed)
        check_limits(call_seconds, context_tokens=context_tokens, turn_limit=turn_limit, memory_bytes=memory_bytes)
        if draw("score") not in recipe.collected_columns:
            raise RecipeError(
                f"recipe {recipe.name!r}: admission reads the score during collection, but phase reward makes it only "
                "with the output of a model, which is computed after collection; start phase reward with a component "
                "that makes the score without a model, such as reward.OutcomeScore()"
            )
        if recipe.replay is not None and store is None:
            raise RecipeError(
                f"recipe {recipe.name!r}: phase replay needs a store, but store is None; give Collector(..., "
                "store=Store.open(path)) or, in a worker that only rolls out, use recipe.replace(replay=None)"
            )
        self.engines = engines
        self.worlds = {
            name: EnvironmentHandle(each, name, processes, memory_bytes) for name, each in environments.items()
        }
        # A collector that is garbage ends the threads and processes of its environments.
        weakref.finalize(self, _end_workers, tuple(self.worlds.values())).atexit = False
        self.recipe = recipe
        self.store = store
        self.seed = int(seed)
        self.sampling = Sampling() if sampling is None else sampling
        self.context_tokens = context_tokens
        self.turn_limit = turn_limit
        self.call_seconds = call_seconds
        self.concurrency = concurrency
        self.progress = progress
        self._pool_size = task_pool
        self._pool: MixedTasks | None = None
        self._tasks_lock = threading.RLock()
        """Lock for reading tasks of an environment, since prefetched iterations do this in their threads."""
        self._listeners: list[Callable[[int, Mapping[str, Any]], object]] = []
        self._logs = IterationLogs(store)
        self._notices = WarnOnce()
        check_cut(batch_policy, recipe, self.worlds, staleness, context_tokens=context_tokens, turn_limit=turn_limit)
        self.batch_policy = batch_policy
        self._is_partial = not batch_policy.is_synchronous
        self._models = dict(models or {})
        self._workers = None
        if rollout_workers is not None:
            self._workers = RolloutWorkers(rollout_workers, recipe, is_synchronous=batch_policy.is_synchronous)
        self._rolling_out = threading.Lock()
        self._allow_changes = allow_changes
        self._head = RunState(0, {}, {}, {}, None, _core.Batch.empty(), 0) if store is None else RunState.of(store)
        self._tasks = self._head.tasks
        """Task statistics after the batch that was collected last."""
        recipe.check(facts=self._settings().facts(recipe))
        self._prefetcher = (
            IterationPrefetcher(staleness, recipe, store, self._logs, self._make_prefetched) if staleness else None
        )
        self._limiters = slot_limiters(concurrency, environments) if staleness else None
        self._run: dict[str, Any] = {"recipe": json.loads(json.dumps(recipe.to_dict())), "seed": self.seed}
        self._check_run(self._run, {})
        self._head = self._head.carried(recipe, self._run, self._notices)
        save_tokenizer(store, engines.values())

    @property
    def iteration(self) -> int:
        """Number of the iteration to collect: 0 at first, or the one at which the store stopped."""
        return self._now().iteration

    def __call__(self, *, tasks: int, group_size: int) -> Batch:
        """Collect the batch of this iteration.

        Args:
            tasks: number of groups to admit.
            group_size: trajectories of a group (programs with their own budget ignore it).

        Returns:
            A batch with column `score` at level `draw`. It can have fewer groups than requested if admission rejects
                many.

        Raises:
            InvalidInputError: `tasks` or `group_size` is not positive, or there are not enough tasks; the environment
                or program makes an invalid call; or the reward of every draw is NaN.
            AgentRLError: or another error of the engine or a program, if it fails most groups.
            KeyboardInterrupt: interrupted; another call continues.
        """
        check_whole("collect", tasks=tasks, group_size=group_size)
        tasks, group_size = int(tasks), int(group_size)
        run, started = {**self._run, "group_size": group_size}, dict[str, Any]()
        if self.store is not None and "tasks" not in run:
            with self._tasks_lock:
                run["tasks"] = task_digest(self._task_pool().worlds)
            started["tasks"] = tasks_begun_with(self.store.path, run["tasks"], replace=self._allow_changes)
        if run != self._run:
            self._check_run(run, started)
        self._run = run
        head = self._now()
        is_committed = self.store is not None and self.store.has_batch(head.iteration)
        if not self._allow_changes and (self._prefetcher is not None or not is_committed):
            head.check_weights(self.engines)
        if self._prefetcher is not None:
            self._prefetcher.begin(head, tasks, group_size)
        if self.store is None:
            return with_committed_columns(self._collected(head, tasks, group_size))
        if is_committed:
            batch = self.store.batch(head.iteration)
        else:
            batch = self.store.rebase(self._collected(head, tasks, group_size))
            self.store.append(batch, iteration=head.iteration)
            self.store.flush()
            self._logs.drop(head.iteration)  # it is not needed any more, and it has all sampled tokens
            self._head = replace(head, tasks=self._tasks, sequence=self.store.sequence)
        # Random choices in phase reward depend on ids of the store: a restart scores stored rows, so do the same here.
        batch = with_committed_columns(batch)
        return score_again(self.recipe, batch, batch, head.components)

    def roll_out(self, order: RolloutOrder) -> Batch:
        """Roll out the groups of an order with the engines and environments of this process.

        For the processes of `Collector(rollout_workers=...)`. The order has tasks, seed, sampling, limits and states of
        the run; this collector has the same recipe (without its replay) and environments, and an engine with the
        current weights, which you send to it; `models`, `concurrency` and `processes` are its own. It needs no store,
        and selects nothing. Rollouts of an order are not recorded: if the process is killed, another one repeats
        them.

        Args:
            order: the argument of a worker's function.

        Returns:
            The rollouts, for the writer; as an object that can be pickled (Arrow).

        Raises:
            InvalidInputError: the order is of another recipe or of unknown environments, or the engine has older
                weights than the writer's `staleness` allows.
            AgentRLError: or another error of the engine or a program, if it fails most groups.

        Example:
            >>> import agentrl_core as arl
            >>> from agentrl_core import engine, env, recipes, warm_start
            >>> def collector(workers=None):
            ...     world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
            ...     _, tokenizer = warm_start.build(world, seed=0)
            ...     script = engine.Scripted(tokenizer, lambda tokens: "<answer>12</answer>")
            ...     return arl.Collector(script, world, recipes.GRPO, rollout_workers=workers)
            >>> workers = [collector().roll_out for _ in range(2)]    # processes in a real run
            >>> collector(workers)(tasks=2, group_size=4)
            Batch(8 draws in 2 groups, 8 trajectories, 10 nodes)
        """
        with self._rolling_out:
            return roll_out_order(self._settings(), self.recipe, order)

    def end_iteration(self, batch: Batch, metrics: Mapping[str, object], *, checkpoint: str | None = None) -> None:
        """Close the iteration: its computed columns and metrics go to the store, and the next one begins.

        The metrics get `success` and `success@<domain>`, the fraction of the iteration's trajectories that solved their
        task (an unknown success does not count), and two tables. `collect` counts the `draws` of the batch, those
        `unscored` (their score is unknown, so no update uses them), trajectories that `failed`, and `abandoned` threads
        (a call took too long). `tokens` accounts for every generated token: `generated` in this iteration, `consumed`
        by this batch and `stale` of those (sampled by weights before the update that has the iteration's number;
        `staleness` is the mean number of versions), `dropped`, `in_flight` after the batch, `cached` of the `context`
        tokens that engines were given, and those that were `trained` (the number `tokens` of `Updates.metrics`).

        Args:
            batch: the trained batch, with its computed columns.
            metrics: `Updates.metrics`, and other metrics; saved as JSON (NaN and infinity as null).
            checkpoint: name of the user's own checkpoint of the weights after this update, so that a restart knows
                which weights belong to the data.

        Raises:
            InvalidInputError: the batch is of another iteration than the one that is open, or `metrics` has a table
                `collect` or `tokens` of its own.
            RecipeError: a hook of the recipe decides about optimizer steps (`schedule.SkipStep`,
                `recipes.vcpo.ScaleLearningRate`), and `Update.step` was not called; or the recipe learns from what
                draws lost, and the batch is not that of `Updates.with_losses`.
        """
        if not isinstance(batch, Batch):
            raise InvalidInputError(f"end_iteration: batch is {batch!r:.60}; pass the trained Batch")
        if not isinstance(metrics, Mapping):
            raise InvalidInputError(f"end_iteration: metrics is {metrics!r:.60}; pass the mapping Updates.metrics")
        head = self._now()
        iterations = batch.column("iteration", "draw")
        if len(iterations) and int(iterations.max()) != head.iteration:
            raise InvalidInputError(
                f"end_iteration: batch is of iteration {int(iterations.max())}, but iteration {head.iteration} is "
                f"open; pass the batch of iteration {head.iteration}, from collect(tasks=..., group_size=...)"
            )
        check_stepped(self.recipe, metrics)
        check_losses(self.recipe, batch)
        metrics = with_counts(batch, metrics)
        # On the whole batch and with the state at the start of the iteration, so that a restart gives the same result.
        pool = self._known_pool(self._tasks if self.store is None else head.tasks)

        def score(rows: Batch) -> Batch:
            return score_again(self.recipe, batch, rows, head.components)

        ended = iteration_record(batch, metrics, head.iteration, pool, score)
        solved = {name: value for name, value in ended.metrics.items() if name.split("@")[0] == "success"}
        metrics = {**solved, **metrics}
        components = self.recipe.next_states(head.components, ended)
        if self.store is None:
            # One assignment: an interrupt finds it done or not begun.
            self._head = replace(head, iteration=head.iteration + 1, components=components, tasks=self._tasks)
        else:
            table, arrays = split_arrays(components)
            state = {
                "metrics": metrics,
                "checkpoint": checkpoint,
                "components": table,
                "policy_versions": {name: engine.policy_version for name, engine in self.engines.items()},
                "run": {**head.run, **self._run},
            }
            self.store.close_iteration(batch, state, arrays)
            self._head = RunState.of(self.store, tasks=head.tasks)
        if self._prefetcher is not None:
            self._prefetcher.end(head.iteration)
        self._logs.drop(head.iteration)
        if self.recipe.controllers:
            warn_missed_metrics(self._notices, self.recipe, components)
        for call in self._listeners:
            call(head.iteration, metrics)

    def import_trajectories(self, metrics: Mapping[str, object] | None = None) -> AbstractContextManager[Forest]:
        """Import trajectories that were sampled elsewhere, so that the memories of the run can replay them.

        The trajectories become an iteration of the run without rollouts, draws or training. Phase reward scores them,
        and each memory keeps those that match its `where`. Imports survive a kill like any iteration; an import that
        was interrupted has to be repeated. They do not count in success rates.

        The probability of the imported tokens is unknown: replay them with `old_logprob="none"` (the ratio is 1) or
        `"recomputed"` (by the policy before the update). `"behaviour"` refuses tokens without a log-prob.

        Args:
            metrics: of the iteration, read by the controllers of the recipe. Without it they keep their values, with a
                warning.

        Yields:
            A forest with the recorded columns of the run. Start trajectories with `origin="imported"` or `"expert"`;
            use task ids of the environment if the rows should join groups by task.

        Raises:
            InvalidInputError: a trajectory has another origin, the collector has no store, or the open iteration
                already has another batch. Nothing is stored in these cases.

        Example:
            >>> import tempfile
            >>> import agentrl_core as arl
            >>> from agentrl_core import engine, env, recipes, replay, warm_start
            >>> from agentrl_core.component import Where
            >>> world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
            >>> _, tokenizer = warm_start.build(world, seed=0)
            >>> script = engine.Scripted(tokenizer, lambda tokens: "<answer>12</answer>")
            >>> demonstrations = replay.Memory(where=Where(origin="expert", column="score", above=0.5))
            >>> recipe = recipes.GRPO.replace(replay=replay.Mix(demonstrations, count=1, old_logprob="none"))
            >>> collector = arl.Collector(script, world, recipe, store=arl.Store.open(tempfile.mkdtemp()))
            >>> if collector.iteration == 0:
            ...     with collector.import_trajectories() as forest:
            ...         forest.add_group(0, world.tasks(1)[0].task_id)
            ...         chat = forest.start(0, 0, origin="expert")
            ...         _ = forest.append_chats([chat], [[1, 2, 3, 4, 5]], [[0, 0, 1, 1, 0]])
            ...         forest.finish(chat, reward=1.0)
            >>> collector(tasks=2, group_size=4).num_draws, collector.iteration
            (9, 1)
        """

        def close(kept: Batch) -> None:
            # Like a collected batch, it has a score for each of its zero draws.
            scored = self.recipe.score(kept, self._now().components)
            self.end_iteration(scored, metrics or {})

        return imported(self.store, self.iteration, self._settings().facts(self.recipe), close)

    def evaluate(
        self,
        *,
        tasks: int,
        split: Split = "held_out",
        samples: int = 1,
        rollout: Rollout | None = None,
    ) -> Evaluation:
        """Evaluate the engines with their current weights, without any effect on training.

        Evaluation uses separate seeds: equal weights give equal results, and no seed is shared with training. With a
        store the rollouts go to a separate store, its folder `evaluations`, one iteration each.

        Args:
            tasks: number of the split's tasks, per environment.
            split: `held_out` or `train`.
            samples: rollouts of each task.
            rollout: the program; None: `rollout.Independent()`.

        Raises:
            InvalidInputError: `tasks` or `samples` is not positive, or there are fewer tasks.
        """
        check_whole("evaluate", tasks=tasks, samples=samples)
        tasks, samples = int(tasks), int(samples)
        with self._tasks_lock:
            of = {name: checked_tasks(world.environment, tasks, split) for name, world in self.worlds.items()}
            for name, each in of.items():
                if len(each) < tasks and not self.worlds[name].is_world_model:
                    raise InvalidInputError(
                        f"evaluate: tasks={tasks}, but environment {name!r} has {len(each)} tasks of split {split!r}; "
                        f"give at most {len(each)}"
                    )
            chosen = [(name, task) for name, each in of.items() for task in each]
            check_chosen(chosen)
        recipe = self.recipe.replace(rollout=Independent() if rollout is None else rollout)
        if self.store is None:
            batch = self._evaluated(chosen, recipe, samples, iteration=0)
        else:
            with Store.open(Path(self.store.path) / "evaluations") as kept:
                batch = self._evaluated(chosen, recipe, samples, iteration=kept.iteration)
                batch = kept.rebase(batch)
                kept.append(batch, iteration=kept.iteration)
                # A missing success counts as unsolved.
                solved = float(np.mean(batch.column("success", "draw") == 1))
                state = {"iteration": self.iteration, "split": split, "success": solved}
                kept.close_iteration(batch, state)
        return Evaluation.of([task for _, task in chosen], batch, samples)

    def _evaluated(self, chosen: Sequence[tuple[str, Task]], recipe: Recipe, samples: int, *, iteration: int) -> Batch:
        head = self._now()

        def score(rows: Batch) -> Batch:
            return self.recipe.score(rows, head.components)

        driver = RolloutDriver(
            self._settings(), recipe, head, IterationLog(), score, iteration=iteration, mode="evaluate"
        )
        return driver.roll_out(chosen, [samples] * len(chosen), first=0)

    def on_iteration(self, call: Callable[[int, Mapping[str, Any]], object]) -> None:
        """Register a callback after each closed iteration, with its number and metrics (for loggers).

        Example:
            >>> import agentrl_core as arl
            >>> from agentrl_core import engine, env, recipes, warm_start
            >>> world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
            >>> _, tokenizer = warm_start.build(world, seed=0)
            >>> script = engine.Scripted(tokenizer, lambda tokens: "<answer>12</answer>")
            >>> collector = arl.Collector(script, world, recipes.GRPO)
            >>> collector.on_iteration(lambda iteration, metrics: print(iteration, metrics["collect"]["draws"]))
            >>> collector.end_iteration(collector(tasks=2, group_size=4), {})
            0 8
        """
        self._listeners.append(call)

    def annotate_tasks(self, name: str, values: object) -> None:
        """Set a numeric column for the pool's tasks, read by every later selection.

        An example is the predictions of a value model. Call it before each iteration whose numbers are new. The column
        replaces an environment's column of the same name. It is not stored: after a resume, set it again before the
        interrupted iteration is collected. With
        `staleness`, iterations whose collection has started keep the numbers by which their tasks were selected.

        Args:
            name: name of the column, such as the `prior` of V0.
            values: `float[tasks]` or `float[tasks, k]` in the order of the pool, or a table of numbers by task id.

        Raises:
            InvalidInputError: the name is that of a column of the run, or a task has no number or is unknown.

        Example:
            >>> import agentrl_core as arl
            >>> from agentrl_core import engine, env, recipes, warm_start
            >>> world = env.ReasoningGym(["lcm"], seed=0, held_out=0)
            >>> _, tokenizer = warm_start.build(world, seed=0)
            >>> script = engine.Scripted(tokenizer, lambda tokens: "<answer>12</answer>")
            >>> collector = arl.Collector(script, world, recipes.V0, task_pool=3)
            >>> collector.annotate_tasks("prior", [0.5, 0.5, 0.99])
            >>> collector(tasks=3, group_size=4).num_draws
            12
        """
        self._task_pool().annotate(name, values)

    def close(self) -> None:
        """Stop running iterations, and the threads and processes of environments. Another call restarts them."""
        if self._prefetcher is not None:
            self._prefetcher.stop()

        loop.run(lambda: _closed(self.worlds.values()))

    def _now(self) -> RunState:
        """Return the state of the loop at the store's last commit.

        A Ctrl-C can arrive between a commit and the line that records it here.
        """
        if self.store is not None and self._head.sequence != self.store.sequence:
            self._head = RunState.of(self.store).carried(self.recipe, self._run, self._notices)
        return self._head

    def _check_run(self, run: Mapping[str, Any], started: Mapping[str, Any]) -> None:
        """Refuse to resume a run that differs from the stored one, or from what was started and not stored yet."""
        if self.store is not None and not self._allow_changes:
            head = self._now()
            replace(head, run={**started, **head.run}).check_run(run, self.store.path)

    def _collected(self, head: RunState, tasks: int, group_size: int) -> Batch:
        """Return the batch of the open iteration, collected now or prefetched, with updated task statistics."""
        log = self._logs.of(head.iteration)
        if self._prefetcher is None:
            log.begin()
            made = self._make(head, head.iteration, log, tasks, group_size, self._settings())
            batch = made.batch
        else:
            made = self._prefetcher.take(head.iteration, self.progress)
            batch = attach_current_state(made.batch, self.recipe, head.components)
        made.warn_without_draws(self._notices, self.worlds)
        if log.unused:
            warn_unused_records(self._notices, log)
        with_changes, self._tasks = batch._core.advance_tasks(head.tasks, made.domains)
        trim_heap(with_changes.level_len("node_token"))
        return Batch(with_changes)

    def _make(
        self,
        head: RunState,
        iteration: int,
        log: IterationLog,
        tasks: int,
        group_size: int,
        settings: CollectionSettings,
    ) -> BatchBuilder:
        """Build the batch of an iteration: select tasks, roll out, and admit groups."""
        inputs = IterationInputs(iteration, self.recipe, head, self._known_pool(head.tasks), self.seed, self.store)
        if self._is_partial:
            later = partial(self._logs.of, iteration + 1)
            return make_partial_batch(inputs, settings, self.batch_policy, log, later, tasks, group_size)
        driver: RolloutDriver | WorkerDriver
        if self._workers is None:
            driver = RolloutDriver(settings, inputs.now, head, log, inputs.score, iteration=iteration)
        else:
            driver = WorkerDriver(self._workers, settings, self.recipe, head, log, iteration=iteration)
        return make_batch(inputs, driver, log, tasks, group_size)

    def _make_prefetched(
        self,
        iteration: int,
        head: RunState,
        tasks: int,
        group_size: int,
        log: IterationLog,
        task: IterationTask[BatchBuilder],
    ) -> BatchBuilder:
        """Build the batch of an iteration in a separate thread, concurrently with other iterations."""
        settings = replace(self._settings(), progress=task.check_stopped, limiters=self._limiters, turn=task)
        if self._is_partial:
            # Groups in flight come from the iteration before.
            task.wait_for_previous_batch()
            settings = replace(settings, turn=None)
        head = head.carried(self.recipe, self._run, self._notices)
        return self._make(head, iteration, log, tasks, group_size, settings)

    def _settings(self) -> CollectionSettings:
        return CollectionSettings(
            engines=self.engines,
            worlds=self.worlds,
            sampling=self.sampling,
            context_tokens=self.context_tokens,
            turn_limit=self.turn_limit,
            call_seconds=self.call_seconds,
            concurrency=self.concurrency,
            seed=self.seed,
            models=self._models,
            store=self.store,
            notices=self._notices,
            progress=self.progress,
        )

    def _known_pool(self, tasks: _core.Batch) -> Pool:
        """Return the pool of tasks, with their statistics."""
        return Pool(self._task_pool(), tasks.tasks)

    def _task_pool(self) -> MixedTasks:
        """Return the tasks of the pool, each with its world, interleaved over worlds."""
        with self._tasks_lock:
            if self._pool is None:
                self._pool = mixed_tasks(self.worlds, self._pool_size, self._tasks_lock)
            return self._pool


async def _closed(worlds: Iterable[EnvironmentHandle]) -> None:
    for world in worlds:
        await world.close()


def _end_workers(worlds: Sequence[EnvironmentHandle]) -> None:
    """Close the environments of a garbage-collected collector, without waiting, since any thread may run this."""
    loop.post(lambda: _closed(worlds))
