"""Trajectories that were not sampled here, for memories to draw from: chats, other runs, data sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from agentrl_core.data.codes import CODES
from agentrl_core.data.forest import Forest
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.data.store import Store

_FOREIGN = [CODES["origin"].index(name) for name in ("expert", "imported")]


class _Collector(Protocol):
    """What is asked of a collector, which stands above this package."""

    recipe: Any
    store: Store | None

    @property
    def iteration(self) -> int: ...

    def update(self, batch: Any, metrics: Mapping[str, object]) -> None: ...

    def _setting(self) -> Any: ...

    def _now(self) -> Any: ...


@contextmanager
def bring(collect: _Collector, metrics: Mapping[str, object] | None = None) -> Iterator[Forest]:
    """Give trajectories that were not sampled here to the memories of a run.

    What is put into the forest becomes an iteration of the run in which nothing is rolled out, drawn or trained: phase
    reward scores it, and every memory keeps what lies in its `where`. From then on it is drawn as anything else is, and
    what a run remembers of it is the same after any kill: a run that goes on has it, and one that was killed while it
    was brought is given it again. It counts in no success rate, because the policy did not say it.

    Nobody knows how likely it was where it was sampled: draw it with `old_logprob="none"` (the ratio is 1) or
    `"recomputed"` (by the policy before the update). With `"behaviour"` tokens without a log-prob are refused.

    Args:
        collect: a collector with a store.
        metrics: of the iteration, what controllers of the recipe follow; without it they stay where they are, and a
            warning says so.

    Yields:
        A forest with the facts of the run. Trajectories are started with `origin="imported"` or `"expert"`; tasks are
        those of the environment, where rows are to join groups by their task.

    Raises:
        InvalidInputError: a trajectory is of another origin, the collector has no store, or the open iteration has a
            batch that is not this one. Nothing is stored then.

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
        >>> collect = arl.Collector(script, world, recipe, store=arl.Store.open(tempfile.mkdtemp()))
        >>> if collect.iteration == 0:
        ...     with replay.bring(collect) as forest:
        ...         forest.add_group(0, world.tasks(1)[0].task_id)
        ...         chat = forest.start(0, 0, origin="expert")
        ...         _ = forest.append_chats([chat], [[1, 2, 3, 4, 5]], [[0, 0, 1, 1, 0]])
        ...         forest.finish(chat, reward=1.0)
        >>> collect(tasks=2, group_size=4).num_draws, collect.iteration
        (9, 1)
    """
    store, now = collect.store, collect.iteration
    if store is None:
        raise InvalidInputError("bring: the collector has no store, so nothing can be drawn again; give it one")
    forest = Forest(iteration=now, facts=collect._setting().facts(collect.recipe))  # noqa: SLF001 - of this package
    yield forest
    batch = forest.freeze()
    origins = np.asarray(batch.trajectories.column("origin"))
    if not np.isin(origins, _FOREIGN).all():
        raise InvalidInputError(
            "bring: the forest has trajectories that were generated or imagined here; start what was not sampled here "
            'with forest.start(..., origin="imported") or origin="expert"'
        )
    if not store.has_batch(now):
        store.append(store.rebase(batch.select_draws(np.zeros(0, np.int64))), iteration=now)
        store.flush()
    kept = store.batch(now)
    if kept.num_draws or len(kept.trajectories) != len(origins):
        raise InvalidInputError(
            f"bring: iteration {now} of {store.path} has a batch already, which is not this one; close it with "
            "collect.update, or bring this one at the beginning of the run"
        )
    # As a batch that is rolled out: with a score of every draw, of which there are none.
    recipe = collect.recipe
    collect.update(recipe.score(recipe.with_states(kept, collect._now().components)), metrics or {})  # noqa: SLF001
