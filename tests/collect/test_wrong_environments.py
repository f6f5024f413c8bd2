"""Mistakes of an environment or a caller: one error each that names place, value and remedy."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import polars as pl
import pytest
from small_world import SmallWorld, paying

import agentrl_core as arl
from agentrl_core import recipes, rollout
from agentrl_core.collect import evaluate
from agentrl_core.env import StepFlag, StepResult, Task
from agentrl_core.exceptions import AgentRLWarning, InvalidInputError


def collected(world: Any, program: rollout.Rollout | None = None, **options: Any) -> arl.Batch:
    recipe = recipes.GRPO if program is None else recipes.GRPO.replace(rollout=program)
    return arl.Collector(world, world, recipe, task_pool=8, **options)(tasks=2, group_size=4)


def nothing_comes_of(world: Any, message: str) -> None:
    """Each group is reported and left out, and the iteration has no draws."""
    with pytest.warns(AgentRLWarning, match=message), pytest.warns(AgentRLWarning, match="has no draws"):
        assert collected(world).num_draws == 0


def ends(**options: Any) -> Any:
    return lambda *_: StepResult(**({"reward": 1.0, "terminated": True} | options))


WRONG_ANSWERS = {
    "endless": (
        lambda *_: StepResult(),
        r"step 1 of task 'train \d': StepResult.observation is None, but the episode goes on .* terminated=True",
    ),
    "gym tuple": (
        lambda *_: ("room", 0.0, False, False, {}),
        r"step 1 of task 'train \d': step gave \('room', .* \(a tuple\); return an env.StepResult: observation, reward",
    ),
    "nothing": (lambda *_: None, r"step gave None \(a NoneType\); return an env.StepResult"),
    "number": (
        ends(observation=5, terminated=False),
        r"StepResult.observation is 5 \(a int\); give a text or messages",
    ),
    "messages": (
        ends(observation=[{"role": "user"}], terminated=False),
        r"StepResult.observation\[0\] is \{'role': 'user'\} \(a dict\), without a text in content; give a",
    ),
    "no messages": (
        ends(observation=["hello"], terminated=False),
        r"StepResult.observation\[0\] is 'hello' \(a str\); give a text or messages",
    ),
    "text reward": (ends(reward="1"), r"StepResult.reward is '1' \(a str\); give a finite number .*None .* NaN"),
    "infinite reward": (ends(reward=math.inf), r"StepResult.reward is inf \(a float\); give a finite number"),
    "rewards": (ends(reward=[1.0, 2.0]), r"StepResult.reward is \[1.0, 2.0\] \(a list\)"),
    "terminated": (ends(terminated="no"), r"StepResult.terminated is 'no' \(a str\); give True or False"),
    "success": (ends(success="no"), r"StepResult.success is 'no' \(a str\); give True or False"),
    "flags": (ends(flags=-1), r"StepResult.flags is -1 \(a int\); give env.StepFlag bits"),
    "facts": (ends(facts=[1.0]), r"StepResult.facts is \[1.0\] \(a list\); give a table of values by name"),
    "unknown fact": (
        ends(facts={"color": 1.0}),
        r"StepResult.facts has 'color', which the environment does not declare",
    ),
    "info": (ends(info="solved"), r"StepResult.info is 'solved' \(a str\); give a table of facts, or None"),
}


@pytest.mark.parametrize("name", WRONG_ANSWERS)
def test_an_answer_that_cannot_be_names_the_step(name: str) -> None:
    answer, message = WRONG_ANSWERS[name]
    nothing_comes_of(SmallWorld(answer), rf"environment SmallWorld, .*{message}")


@pytest.mark.parametrize("reward", [True, np.float32(0.5), np.int64(2), None])
def test_numbers_of_any_kind_are_rewards(reward: Any) -> None:
    batch = collected(SmallWorld(ends(reward=reward, terminated=np.bool_(True), success=np.bool_(False))))
    assert set(batch.column("reward", "draw")) == {float(reward or 0)}


@pytest.mark.parametrize("observation", [5, None, [], [{"role": "user"}]])
def test_a_first_observation_is_a_text_or_messages(observation: object) -> None:
    message = r"reset of task 'train \d': Episode.observation.*; give a text, or"
    nothing_comes_of(SmallWorld(observation=observation), message)


def test_an_episode_and_its_state_are_checked() -> None:
    nothing_comes_of(SmallWorld(state=7), r"state_key\(\) gave 7 \(a int\); return bytes")
    world = SmallWorld()
    world.reset = lambda task, seed: ("room", {})  # noqa: ARG005
    nothing_comes_of(world, r"reset gave \('room', \{\}\) \(a tuple\), which has no 'observation'")
    world = SmallWorld()
    world.tasks = lambda count, split: ["a"] * count  # noqa: ARG005
    with pytest.raises(InvalidInputError, match=r"environment SmallWorld: tasks\(.*\)\[0\] is 'a'; give env.Task"):
        collected(world)
    with pytest.raises(InvalidInputError, match=r"tasks\(.*\)\[0\] is 'a'"):
        evaluate(world, world, tasks=3)
    with pytest.raises(InvalidInputError, match="evaluate: tasks=0"):
        evaluate(SmallWorld(), SmallWorld(), tasks=0)


def test_the_parts_of_a_collector_are_checked() -> None:
    world: Any = SmallWorld()
    for arguments, options, message in (
        ((world, world, "grpo"), {}, r"recipe='grpo' is not a Recipe; give one, such as recipes.get\('grpo'\)"),
        ((world, world, None), {}, r"recipe=None is not a Recipe; give one, such as recipes.GRPO"),
        (
            (world, world, recipes.GRPO),
            {"store": "runs/x"},
            r"store='runs/x' is not a Store; give Store.open\('runs/x'\)",
        ),
        (("vllm", world, recipes.GRPO), {}, r"engine='vllm' has no 'generate'; give an engine"),
        ((world, [1], recipes.GRPO), {}, r"environment=\[1\] has no 'tasks'; give an object"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            arl.Collector(*arguments, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda collect, _: collect(tasks="3", group_size=2), "collect: tasks='3'; give a whole number of at least 1"),
        (lambda collect, _: collect(tasks=1, group_size=0), "collect: group_size=0; give a whole number"),
        (lambda collect, _: collect(tasks=True, group_size=2), "collect: tasks=True; give a whole number"),
        (lambda collect, _: collect.end_iteration(3, {}), "end_iteration: batch is 3; pass the trained Batch"),
        (lambda collect, batch: collect.end_iteration(batch, 3), "end_iteration: metrics is 3; pass the mapping"),
        (lambda *_: collected(SmallWorld(), context_tokens="a"), "Collector: context_tokens='a'; give a whole number"),
        (lambda *_: collected(SmallWorld(), turn_limit=0), "Collector: turn_limit=0; give a whole number"),
        (lambda *_: collected(SmallWorld(), concurrency=0), "Collector: concurrency=0; give a whole number"),
        (lambda *_: collected(SmallWorld(), call_seconds="1"), "Collector: call_seconds='1'; give a number of seconds"),
        (lambda *_: collected(SmallWorld(), sampling={"top_k": 1}), "Collector: sampling={'top_k': 1}; give an engine"),
        (lambda *_: evaluate(SmallWorld(), SmallWorld(), tasks=1.5), "evaluate: tasks=1.5; give a whole number"),
    ],
)
def test_arguments_of_the_loop_are_checked(call: Any, message: str) -> None:
    world = SmallWorld()
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=8)
    batch = collect(tasks=1, group_size=2)
    with pytest.raises(InvalidInputError, match=message):
        call(collect, batch)


def test_an_unknown_reward_is_counted_and_reported_once(tmp_path) -> None:
    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        paid = paying(task, seed, actions)
        return StepResult(reward=math.nan, terminated=True) if paid.terminated and seed % 3 == 0 else paid

    world = SmallWorld(answer)
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=8)
        with warnings.catch_warnings(record=True, action="always") as caught_warnings:
            for _ in range(3):
                batch = collect(tasks=4, group_size=4)
                collect.end_iteration(recipes.GRPO.credit(batch), {"loss": 1.0})
        assert len(caught_warnings) == 1
        assert "environment SmallWorld: the reward of step 2 of task 'train" in str(caught_warnings[0].message)
        assert "collect.unscored" in str(caught_warnings[0].message)
        unknown = int(np.isnan(batch.column("reward", "draw")).sum())
        counts = {"draws": 16, "unscored": unknown, "failed": 0, "abandoned": 0}
        metrics = store.state["metrics"]
        assert (metrics["collect"], metrics["loss"]) == (counts, 1.0)
        assert 0 < unknown < 16


def test_rewards_of_which_none_is_known_are_an_error(tmp_path) -> None:
    world = SmallWorld(ends(reward=math.nan))
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=8)
        with (
            pytest.warns(RuntimeWarning, match="is NaN"),
            pytest.raises(
                InvalidInputError,
                match=r"none of the 8 draws of iteration 0 .* SmallWorld paid NaN for each",
            ),
        ):
            collect(tasks=2, group_size=4)
        assert (len(store.trajectories), len(store.draws)) == (0, 0), "no batch comes of it"


def test_forks_of_a_world_that_does_not_replay_end_as_failed() -> None:
    answers = iter(range(10_000))

    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        if len(actions) < 3:
            return StepResult(f"{'x' * next(answers)}", flags=StepFlag.TOOL_RESULT)
        return paying(task, seed, actions)

    planner = rollout.EntropyBranching(budget=6, initial=2, probability=1.0)
    with pytest.warns(RuntimeWarning) as caught_warnings:
        batch = collected(SmallWorld(answer), planner)
    assert len(caught_warnings) == 1
    message = str(caught_warnings[0].message)
    assert "environment SmallWorld is not deterministic for task 'train" in message
    assert "observation of step 1 was '" in message
    trajectories = pl.DataFrame(batch.trajectories)
    forks = trajectories.filter(pl.col("parent_trajectory").is_not_null())
    assert len(forks) > 0
    assert set(forks["status"]) == {4}
    assert forks["info"].str.json_path_match("$.failed").str.starts_with("observation of step 1 was '").all()
    assert not set(forks["trajectory_id"]) & set(pl.DataFrame(batch.draws)["trajectory_id"])


def test_a_replay_is_compared_by_its_state_too() -> None:
    runs: dict[tuple[str, int], int] = {}

    class Hidden(SmallWorld):
        """Observations are equal in every episode, but the states differ."""

        def reset(self, task: Task, seed: int) -> Any:
            episode = super().reset(task, seed)
            runs[task.task_id, seed] = run = runs.get((task.task_id, seed), 0) + 1
            key = episode.state_key
            episode.state_key = lambda: key() + str(run).encode()
            return episode

    with pytest.warns(RuntimeWarning, match="state_key of reset was b'train"):
        batch = collected(Hidden(), rollout.EntropyBranching(budget=6, initial=2, probability=1.0))
    assert (pl.DataFrame(batch.trajectories)["status"] == 4).any()


def test_a_world_that_replays_is_forked_in_silence() -> None:
    batch = collected(SmallWorld(), rollout.EntropyBranching(budget=6, initial=2, probability=1.0))
    trajectories = pl.DataFrame(batch.trajectories)
    assert (trajectories["parent_trajectory"].is_not_null()).any()
    assert set(trajectories["status"]) == {0}


def test_entropy_branching_without_tool_results_warns_once() -> None:
    def answer(task: Task, seed: int, actions: list[str]) -> StepResult:
        return StepResult("go on") if len(actions) < 2 else paying(task, seed, actions)

    world = SmallWorld(answer)
    recipe = recipes.GRPO.replace(rollout=rollout.EntropyBranching(budget=4, initial=2))
    collect = arl.Collector(world, world, recipe, task_pool=8)
    with warnings.catch_warnings(record=True, action="always") as caught_warnings:
        for _ in range(2):
            collect.end_iteration(collect(tasks=2, group_size=4), {})
    assert len(caught_warnings) == 1
    assert "rollout.EntropyBranching forks at tool results, and environment SmallWorld reported none" in str(
        caught_warnings[0]
    )
    assert "TOOL_RESULT" in str(caught_warnings[0].message)


def test_facts_of_every_step_are_kept() -> None:
    def answer(_task: Task, _seed: int, actions: list[str]) -> StepResult:
        if len(actions) < 3:
            return StepResult("go on", info={"room": len(actions)} if len(actions) == 2 else None)
        return StepResult(terminated=True, success=True, info={"room": 3})

    batch = collected(SmallWorld(answer))
    assert set(pl.DataFrame(batch.trajectories)["info"]) == {'{"room": 3, "earlier_steps": [null, {"room": 2}]}'}
    plain = collected(SmallWorld(ends(info={"room": 1})))
    assert set(pl.DataFrame(plain.trajectories)["info"]) == {'{"room": 1}'}
    assert set(pl.DataFrame(collected(SmallWorld()).trajectories)["info"]) == {None}


def test_domains_reach_the_statistics_of_the_tasks(tmp_path) -> None:
    world = SmallWorld()
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO, store=store, task_pool=6)
        for _ in range(4):
            collect.end_iteration(collect(tasks=3, group_size=2), {})
        tasks = pl.DataFrame(store.tasks)
    assert len(tasks) == 12
    numbers = tasks["task_id"].str.tail(1).cast(pl.Int64)
    assert tasks["domain"].to_list() == ["odd" if number % 2 else "even" for number in numbers]
    assert tasks["attempts"].max() > 2, "a task that came again keeps its domain"
