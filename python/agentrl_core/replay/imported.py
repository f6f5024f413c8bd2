"""Trajectories that were not sampled here, for memories to draw from: chats, other runs, data sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentrl_core.data.codes import CODES
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from agentrl_core.collect import Collector
    from agentrl_core.data.batch import Batch

_FOREIGN = [CODES["origin"].index(name) for name in ("expert", "imported")]


def bring(collect: Collector, batch: Batch) -> None:
    """Give trajectories that were not sampled here to the memories of a run.

    They become an iteration of the run in which nothing is rolled out, drawn or trained: phase reward scores them, and
    every memory keeps those that lie in its `where`. From then on they are drawn as any others are, and what a run
    remembers of them is the same after any kill. They count in no success rate, because the policy did not say them.

    Nobody knows how likely they were where they were sampled: draw them with `old_logprob="none"` (the ratio is 1) or
    `"recomputed"` (by the policy before the update). With `"behaviour"` tokens without a log-prob are refused.

    Args:
        collect: a collector with a store.
        batch: what is brought, from a forest with `iteration=collect.iteration`, `base=collect.store.next_ids` and the
            facts that the recipe reads, whose trajectories were started with `origin="imported"` or `"expert"`.

    Raises:
        InvalidInputError: a trajectory is of another origin or iteration, the collector has no store, or the open
            iteration has a batch that is not this one.

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
        >>> if collect.iteration == 0:  # a run that goes on has them
        ...     forest = arl.Forest()
        ...     forest.add_group(0, world.tasks(1)[0].task_id)
        ...     chat = forest.start(0, 0, origin="expert")
        ...     _ = forest.append_chats([chat], [[1, 2, 3, 4, 5]], [[0, 0, 1, 1, 0]])
        ...     forest.finish(chat, reward=1.0)
        ...     replay.bring(collect, forest.freeze())
        >>> collect(tasks=2, group_size=4).num_draws
        9
    """
    store = collect.store
    if store is None:
        raise InvalidInputError("bring: the collector has no store, so nothing can be drawn again; give it one")
    origins, iterations = (np.asarray(batch.trajectories.column(name)) for name in ("origin", "iteration"))
    if not np.isin(origins, _FOREIGN).all():
        raise InvalidInputError(
            "bring: the batch has trajectories that were generated or imagined here; start what was not sampled here "
            'with forest.start(..., origin="imported") or origin="expert"'
        )
    now = collect.iteration
    if (iterations != now).any():
        raise InvalidInputError(
            f"bring: the batch is of iteration {int(iterations[iterations != now][0])}, and iteration {now} is open; "
            "give Forest(iteration=collect.iteration)"
        )
    if not store.has_batch(now):
        undrawn = store.rebase(batch.select_draws(np.zeros(0, np.int64)))
        store.append(undrawn, iteration=now)
        store.flush()
    kept = store.batch(now)
    if kept.num_draws or len(kept.trajectories) != len(origins):
        raise InvalidInputError(
            f"bring: iteration {now} of {store.path} has a batch already, which is not this one; close it with "
            "collect.update, or bring this one at the beginning of the run"
        )
    collect.update(kept, {})
