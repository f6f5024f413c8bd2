"""The selector made of parts: its choices, and its learning in a real collection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pools import Story, pool, selection_request
from small_world import SmallWorld

from agentrl_core import Collector, Store, _core, select
from agentrl_core.component import State
from agentrl_core.component.component import find_component
from agentrl_core.env import StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.recipes import GRPO
from agentrl_core.recipes.a_star_po import LogMeanExp
from agentrl_core.recipes.gdro_rl import BanditAllocator
from agentrl_core.recipes.teach_my_agent import LearningProgress, Linear
from agentrl_core.recipes.vade import LearningSignal
from agentrl_core.select import Band, ComposedSelector, DynamicSampling, RecentVisits
from agentrl_core.select.task_outcomes import TaskOutcomes
from agentrl_core.select.value_trackers import VisitCount


def state_after(tasks: ComposedSelector, visits: TaskOutcomes, story: Story) -> State:
    """Return the state of a selector after its tracker observed this."""
    state = tasks.initial_state()
    return state | {"rows": np.array(story.tracked), "track": tasks.track.next(state["track"], visits)}


def test_without_a_score_the_choice_is_that_of_uniform_in_each_round() -> None:
    tasks, of = ComposedSelector(), pool(50)
    chosen = tasks.choose(of, {}, selection_request(50), 3)
    assert sorted(chosen.rows.tolist()) == list(range(50))
    again = tasks.choose(of, {}, selection_request(20, number=1, taken=chosen.rows[:30]), 3)
    assert set(again.rows.tolist()) == set(chosen.rows[30:].tolist())
    assert len(tasks.choose(of, {}, selection_request(20, number=1, taken=chosen.rows[:45]), 3)) == 5
    uniform = select.Uniform().choose(of, {}, selection_request(10), 3)
    numbers = _core.rng.uniform(np.uint64(3) + np.arange(50, dtype=np.uint64), 0)
    assert uniform.rows.tolist() == np.argsort(numbers, kind="stable")[:10].tolist()


def test_the_nearest_to_the_target_are_chosen() -> None:
    tasks, story = ComposedSelector(track=select.Beta(0.0, 0.0, unseen=0.0), score=select.NearTarget(0.5)), Story()
    state = state_after(tasks, story.visits(0, {9: [1, 0], 4: [1, 0, 0], 7: [1, 1, 1], 2: [1, 1, 0]}), story)
    chosen = tasks.choose(pool(20), state, selection_request(3), 0)
    # 1/2 first; 1/3 and 2/3 are equally near.
    assert chosen.rows[0] == 9
    assert set(chosen.rows[1:].tolist()) == {4, 2}
    assert set(tasks.choose(pool(20), state, selection_request(2, taken=[9, 4]), 0).rows.tolist()) > {2}
    # The same with candidates drawn first, from a part so large that all are drawn.
    among = ComposedSelector(track=tasks.track, score=tasks.score, sample=select.TopSampler(among=20))
    assert among.choose(pool(20), state, selection_request(3), 0).rows[0] == 9


@pytest.mark.parametrize("posterior", [False, True])
@pytest.mark.parametrize("among", [None, 16])
def test_pieces_of_a_large_pool_are_the_whole(
    monkeypatch: pytest.MonkeyPatch, among: int | None, *, posterior: bool
) -> None:
    """Results depend neither on the size of the pieces in which tasks are scanned, nor on the order of draws."""
    story, rng = Story(), np.random.default_rng(1)
    sampler = select.TopSampler(among=among, posterior=posterior)
    tasks = ComposedSelector(track=select.Beta(decay=0.9, idle_decay=0.5), score=LearningSignal(), sample=sampler)
    rows = rng.choice(300, 90, replace=False).tolist()
    state = state_after(tasks, story.visits(0, {row: rng.integers(0, 2, 4).tolist() for row in rows}), story)
    expected = tasks.choose(pool(300), state, selection_request(40, taken=rows[:7]), 5).rows.tolist()
    for size in (7, 64):
        monkeypatch.setattr("agentrl_core.select.composed._PIECE", size)
        assert tasks.choose(pool(300), state, selection_request(40, taken=rows[:7]), 5).rows.tolist() == expected
    assert len(set(expected)) == 40


def test_few_candidates_are_looked_at() -> None:
    looked_at: list[int] = []

    class Nosy(select.NearTarget):
        def __call__(self, estimates: Any) -> Any:
            looked_at.append(len(estimates))
            return super().__call__(estimates)

    tasks = ComposedSelector(score=Nosy(), sample=select.TopSampler(among=4, posterior=True))
    assert len(tasks.choose(pool(1000), {}, selection_request(5), 1)) == 5
    assert looked_at == [20]


def test_thompson_sampling_prefers_a_new_task_to_one_always_solved() -> None:
    """A task solved a hundred times is hardly ever nearest to 1/2; a new one often is."""
    tasks = ComposedSelector(score=select.NearTarget(0.5), sample=select.TopSampler(posterior=True))
    story = Story()
    state = state_after(tasks, story.visits(0, {0: [1.0] * 100}), story)
    choices = [int(tasks.choose(pool(2), state, selection_request(1), key).rows[0]) for key in range(200)]
    assert sum(choices) > 180


def test_quotas_and_stages_make_parts() -> None:
    of = pool(40, ("math", "code"))
    of.column("attempts")
    of._columns["hops"] = np.arange(40) // 10  # 0 to 3
    quota = ComposedSelector(quota=select.Quota((("math", 3), ("code", 1))))
    rows = quota.choose(of, {}, selection_request(16), 5).rows
    assert len(set(rows.tolist())) == 16
    assert (rows % 2).sum() == 4
    stage = ComposedSelector(
        stage=select.Curriculum("hops", (0, 1, 2), earlier=0.25), quota=select.Quota((("math", 1), ("code", 1)))
    )
    state = stage.initial_state()
    state["stage"] = {"stage": 2, "begun": 0, "rate": None}
    rows = stage.choose(of, state, selection_request(8), 5).rows
    assert sorted((rows // 10).tolist()) in [[0] * a + [1] * (2 - a) + [2] * 6 for a in range(3)]
    assert (rows % 2).sum() == 4
    # Twelve of a stage with ten tasks: the rest comes from earlier ones.
    rows = stage.choose(of, state, selection_request(16), 5).rows
    assert (rows // 10 == 2).sum() == 10
    assert len(set(rows.tolist())) == 16


def test_pool_rule_queue_counts_variants_and_surveys() -> None:
    tasks = ComposedSelector(
        pool=select.PoolFilter(below=0.9),
        track=select.Beta(0.0, 0.0),
        count=select.GreedyAllocator("one", low=2, high=8),
        variant=select.PromptBandit(3),
        survey=select.Survey(tasks=2, rollouts=5),
        queue=select.RetryQueue(every=1, share=0.5),
    )
    story = Story()
    visits = story.visits(0, {0: [1, 1], 1: [0, 0], 2: [1, 0]})
    state = state_after(tasks, visits, story)
    assert tasks.pool is not None
    assert tasks.queue is not None
    state["pool"] = tasks.pool.next(state["pool"], visits, state["rows"], 0)
    state["queue"] = tasks.queue.next(state["queue"], visits, None)
    chosen = tasks.choose(pool(4), state, selection_request(3, iteration=0, group_size=4), 2)
    train = chosen.purpose == 0
    assert chosen.rows[0] == 1  # from the queue
    assert chosen.items.tolist() == [0, -1, -1, -1, -1]
    assert set(chosen.rows[train].tolist()) == {1, 2, 3}  # task 0 is solved
    assert chosen.counts[train].sum() == 12
    assert chosen.counts[0] == 2 + (12 - 2 - 2 * int(chosen.counts[1:3].max())) % 8 or chosen.counts[0] >= 2
    assert chosen.counts[~train].tolist() == [5, 5]
    assert set(chosen.variants[train].tolist()) <= {0, 1, 2}
    assert chosen.variants[~train].tolist() == [-1, -1]
    later = tasks.choose(pool(4), state, selection_request(1, number=1, taken=[1, 2], group_size=4), 2)
    assert later.purpose.tolist() == [0]
    assert later.rows.tolist() == [3]


def test_a_table_makes_the_same_selector() -> None:
    tasks = ComposedSelector(
        pool=select.PoolFilter(above=0.0, attempts=16),
        stage=select.Curriculum("hops", (3, 8)),
        quota=select.Quota((("math", 1),)),
        track=RecentVisits(50, bins=10),
        score=select.OutcomeVariance(),
        sample=select.ProportionalSampler(temperature=0.5, among=3),
        count=BanditAllocator(),
        variant=select.PromptBandit(),
        survey=select.Survey(every=2),
        queue=select.RetryQueue(tries=None),
    )
    assert find_component("agentrl_core.select", tasks.to_dict()) == tasks
    recipe = GRPO.replace(name="tasks", select=tasks)
    assert Recipe.from_toml(recipe.to_toml()) == recipe


def hard(task: Task, seed: int, actions: list[str]) -> StepResult:
    """Tasks 0 to 3 are always solved, 4 to 7 never, the others depending on the seed."""
    del actions
    number = int(task.task_id.split()[1])
    success = number < 4 or (number >= 8 and seed % 2 == 0)
    return StepResult(reward=float(success), terminated=True, success=success)


TASKS = ComposedSelector(
    pool=select.PoolFilter(below=1.0, attempts=8),
    quota=select.Quota(),
    track=select.Beta(decay=0.9, idle_decay=0.95),
    score=LearningSignal(),
    sample=select.TopSampler(posterior=True),
    count=select.GreedyAllocator(low=2, high=8),
    variant=select.PromptBandit(3, halve_every=2, least=1),
    survey=select.Survey(tasks=2, rollouts=3, every=2),
    queue=select.RetryQueue(every=2, share=0.5),
)
RECIPE = GRPO.replace(name="tasks", select=TASKS, admit=DynamicSampling(Band(std_above=0.0), max_rounds=2))


def train(store: Store | None, until: int, *, recipe: Recipe = RECIPE) -> Collector:
    world = SmallWorld(hard)
    collect = Collector(world, world, recipe, store=store, seed=3, task_pool=16)
    while collect.iteration < until:
        batch = collect.recipe.credit(collect(tasks=4, group_size=4))
        collect.end_iteration(batch, {})
    return collect


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(np.array_equal(one, other))


def states(collect: Collector) -> dict[str, State]:
    return collect._now().components


def test_a_collection_learns_from_all_its_groups(tmp_path: Path) -> None:
    with Store.open(tmp_path / "run") as store:
        collect = train(store, 12)
        state = states(collect)["select[0].ComposedSelector"]
        rows = state["rows"].tolist()
        attempts = dict.fromkeys(range(16), 0)
        solved = dict.fromkeys(range(16), 0)
        for iteration in range(12):
            table = store.batch(iteration).trajectories
            for task_id, success in zip(table.column("task_id"), table.column("success"), strict=True):
                attempts[int(task_id.split()[1])] += 1
                solved[int(task_id.split()[1])] += success
        assert len(rows) == len(set(rows)) > 8
        pool_state = state["pool"]
        assert dict(zip(rows, pool_state["attempts"].tolist(), strict=True)) == {
            row: count for row, count in attempts.items() if count
        }
        assert all(solved[row] == won for row, won in zip(rows, pool_state["successes"].tolist(), strict=True))
        out = {row for row, is_out in zip(rows, pool_state["out"].tolist(), strict=True) if is_out}
        assert out == {row for row in range(16) if attempts[row] >= 8 and solved[row] == attempts[row]}
        assert out, "an easy task left the pool"
        assert state["variant"]["rollouts"].sum() > 0
        assert state["groups"] >= 48


def test_an_interrupted_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    with Store.open(tmp_path / "whole") as store:
        uninterrupted = train(store, 6)
        expected = states(uninterrupted)
        tokens = [store.batch(iteration).column("token", "token").tolist() for iteration in range(6)]
    for until in range(1, 7):
        with Store.open(tmp_path / "cut") as store:
            train(store, until)
            if until < 6:  # a batch that is committed but not closed
                world = SmallWorld(hard)
                Collector(world, world, RECIPE, store=store, seed=3, task_pool=16)(tasks=4, group_size=4)
    with Store.open(tmp_path / "cut") as store:
        again = train(store, 6)
        assert [store.batch(iteration).column("token", "token").tolist() for iteration in range(6)] == tokens
        assert same(states(again), expected)
    assert same(states(train(None, 6)), expected)


@pytest.mark.parametrize(
    "tasks",
    [
        ComposedSelector(track=VisitCount(), score=select.NearTarget(0.0)),
        ComposedSelector(
            track=RecentVisits(3, bins=4),
            score=select.OutcomeVariance(),
            count=BanditAllocator(2, 4, bins=4),
        ),
        ComposedSelector(track=LearningProgress(), score=Linear(), sample=select.ProportionalSampler(uniform=0.2)),
        ComposedSelector(stage=select.Curriculum("domain", ("even", "odd"), above=None, iterations=2, earlier=0.25)),
        ComposedSelector(track=LogMeanExp(), survey=select.Survey(rollouts=2)),
    ],
)
def test_other_rules_collect(tasks: ComposedSelector) -> None:
    recipe = GRPO.replace(name="tasks", select=tasks)
    collect = train(None, 3, recipe=recipe)
    state = states(collect)["select[0].ComposedSelector"]
    assert state["groups"] == 12
    columns = tasks.columns(pool(16), state, np.arange(16))
    assert all(column.dtype == np.float32 and len(column) == 16 for column in columns.values())


def test_passes_go_through_the_pool() -> None:
    recipe = GRPO.replace(name="tasks", select=ComposedSelector(track=VisitCount(), score=select.NearTarget(0.0)))
    state = states(train(None, 4, recipe=recipe))["select[0].ComposedSelector"]
    assert sorted(state["rows"].tolist()) == list(range(16))
    assert state["track"]["count"].tolist() == [1] * 16
