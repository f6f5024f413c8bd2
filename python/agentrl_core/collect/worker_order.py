"""A part of an iteration's rollouts: the order that the collector sends to a worker, and its execution there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentrl_core.collect.iteration import TokenCounts
from agentrl_core.collect.rollout_driver import CollectionSettings, RolloutDriver
from agentrl_core.collect.rollout_log import IterationLog, digest
from agentrl_core.collect.run_state import RunState, changes
from agentrl_core.component.state import State
from agentrl_core.data.batch import Batch
from agentrl_core.data.store import open_snapshot
from agentrl_core.engine.base import Sampling
from agentrl_core.env.base import Task
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipe import Recipe

_PART = "part"
"""Key in the state of a worker's batch: its `RolloutPart`."""
COUNTED = ("turns", "tokens", "ended", "failed", "repairs", "abandoned", "stored_tokens", "path_tokens", "tool_results")
"""Counters of `Progress` that add up over workers."""


@dataclass(frozen=True)
class RolloutOrder:
    """Order to one worker to roll out neighbouring groups of a selection. It can be pickled.

    Attributes:
        iteration: the iteration of the groups.
        first: place of the first group in the selection.
        chosen: task of each group, with the name of its environment.
        sizes: requested trajectories of each group.
        variants: prompt variant of each group; -1: none.
        other_groups: number of groups of the selection that other workers roll out.
        recipe: the writer's recipe, as a table.
        seed: seed of the run.
        sampling: sampling of every segment.
        limits: `context_tokens`, `turn_limit` and `call_seconds` of the writer.
        versions: oldest weights that the worker's engines may have, by engine name.
        components: states of the recipe's components.
        began: iteration of these states.
        statistics: statistics of the tasks, in a batch without rows.
        store: folder and commit of the run's store, which programs may read; None: there is none.
    """

    iteration: int
    first: int
    chosen: list[tuple[str, Task]]
    sizes: list[int]
    variants: list[int]
    other_groups: int
    recipe: dict[str, Any]
    seed: int
    sampling: Sampling
    limits: dict[str, Any]
    versions: dict[str, int]
    components: Mapping[str, State]
    began: int
    statistics: Batch
    store: tuple[str, str] | None

    @property
    def key(self) -> str:
        """Digest of iteration, place, tasks, group sizes, prompt variants, recipe, seed, sampling and limits."""
        tasks = [(world, task.task_id) for world, task in self.chosen]
        run = (self.recipe, self.seed, self.sampling, sorted(self.limits.items()))
        return digest(repr((self.iteration, self.first, tasks, self.sizes, self.variants, run))).hex()


@dataclass(frozen=True)
class RolloutPart:
    """Result of a worker besides the rows: stored in the state of the worker's batch.

    Attributes:
        key: key of the order.
        agents: number of each agent in the tables.
        counts: counts of generated tokens by group of the selection.
        progress: the counters of `COUNTED`.
        failed_groups: number of groups that failed.
        failure: the error of the first of them; empty: none failed.
    """

    key: str
    agents: dict[str, int]
    counts: dict[str, TokenCounts]
    progress: dict[str, int]
    failed_groups: int
    failure: str

    def to_state(self) -> dict[str, Any]:
        """Return the result as plain values."""
        counts = {name: [list(each.tokens.items()), each.context, each.cached] for name, each in self.counts.items()}
        return {_PART: {**vars(self), "counts": counts}}

    @classmethod
    def of(cls, batch: object, order: RolloutOrder) -> RolloutPart:
        """Read the part of an order from the batch that a worker returned.

        Raises:
            InvalidInputError: a worker returned something else than the batch of `Collector.roll_out`.
        """
        table = batch.state.get(_PART, {}) if isinstance(batch, Batch) else {}
        if table.get("key") != order.key:
            raise InvalidInputError(
                f"Collector: a rollout worker returned {batch!r:.80}, which was not made for the order that it "
                "received; return collector.roll_out(order) from the worker"
            )
        counts = {
            name: TokenCounts(Counter(dict(rows)), context, cached)
            for name, (rows, context, cached) in table["counts"].items()
        }
        return cls(**{**table, "counts": counts})


def roll_out_order(settings: CollectionSettings, recipe: Recipe, order: object) -> Batch:
    """Roll out the groups of an order with the engines and environments of this process.

    Args:
        settings: engines, environments, models and concurrency of the worker; the rest is that of the order.
        recipe: the worker's recipe, which has to equal the writer's, apart from replay.
        order: the order.

    Raises:
        InvalidInputError: the value is not an order, the order is of another recipe or of unknown environments, or an
            engine has older weights than it allows.
    """
    if not isinstance(order, RolloutOrder):
        raise InvalidInputError(
            f"roll_out: order={order!r:.80}; give the object that Collector(rollout_workers=...) sends"
        )
    # A worker replays nothing, and has no store for it.
    before, now = ({**table, "replay": None} for table in (order.recipe, recipe.to_dict()))
    for place, theirs, ours in changes(before, now):
        raise InvalidInputError(
            f"roll_out: the recipe of the writer has {place}={theirs!r:.200}, and that of this worker {ours!r:.200}; "
            "make both collectors with one recipe"
        )
    for world in dict.fromkeys(world for world, _ in order.chosen):
        if world not in settings.worlds:
            raise InvalidInputError(
                f"roll_out: environment {world!r} of the order is unknown to this worker, which has "
                f"{', '.join(map(repr, settings.worlds))}; give both collectors the same names"
            )
    for name, engine in settings.engines.items():
        refresh = getattr(engine, "refresh", None)
        if engine.policy_version < order.versions.get(name, 0) and refresh is not None:
            refresh()  # its servers may have got the weights from the trainer
        if engine.policy_version < order.versions.get(name, 0):
            raise InvalidInputError(
                f"roll_out: engine {name!r} has weights of version {engine.policy_version}, and iteration "
                f"{order.iteration} may be sampled by version {order.versions[name]} and later; call "
                f"engine.update_weights(model, version={order.versions[name]}) in the worker first"
            )
    settings = replace(
        settings,
        seed=order.seed,
        sampling=order.sampling,
        other_groups=order.other_groups,
        store=None if order.store is None else open_snapshot(*order.store),
        **order.limits,
    )
    # Only what programs read: components, and statistics of tasks.
    head = RunState(order.began, dict(order.components), {}, {}, None, order.statistics._core, 0)  # noqa: SLF001
    driver = RolloutDriver(
        settings,
        recipe.at(order.iteration, order.components),
        head,
        IterationLog(),
        lambda batch: recipe.score(batch, order.components),
        iteration=order.iteration,
    )
    batch = driver.roll_out(order.chosen, order.sizes, first=order.first, variants=order.variants)
    failed, failure = driver.failures.summary()
    progress = {name: getattr(driver.progress, name) for name in COUNTED}
    part = RolloutPart(order.key, driver.agents, dict(driver.token_counts), progress, failed, failure)
    return batch.with_state(part.to_state())
