"""Environments: facts, messages, snapshots, several environments and engines."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from failing_world import FailingWorld
from small_world import SmallWorld
from templates import TEMPLATES, bytes_tokenizer

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.env import ExtraColumn, StepFlag, StepResult, Task
from agentrl_core.exceptions import InvalidInputError, RecipeError
from agentrl_core.rollout import Branch, EntropyBranching, Group, Rollout


def test_facts_are_columns(tmp_path: Path) -> None:
    world = FailingWorld(str(tmp_path), ("fine",), "inline")
    with arl.Store.open(tmp_path / "run") as store:
        collect = arl.Collector(SmallWorld(), world, recipes.GRPO, store=store, task_pool=2)
        batch = collect(tasks=2, group_size=2)
        assert batch.column("turn", "step").tolist() == [1.0, 2.0, 3.0] * 4
        assert batch.column("turns", "draw").tolist() == [3.0] * 4
        collect.end_iteration(recipes.GRPO.credit(batch), {})
    steps = pl.scan_ipc(tmp_path / "run" / "steps" / "*.arrow").select(pl.col("facts").struct.field("turn")).collect()
    assert sorted(steps["turn"]) == [1.0] * 4 + [2.0] * 4 + [3.0] * 4


def test_a_program_reports_its_own_facts() -> None:
    class Hinted(Rollout):
        facts = {"hint": ExtraColumn("trajectory"), "verdict": ExtraColumn("trajectory", "key")}  # noqa: RUF012

        async def group(self, group: Group) -> None:
            plain, hinted = group.start(facts={"hint": 0.0}), group.start(facts={"hint": 0.5})
            await group.run([plain, hinted], self.judged)

        async def judged(self, branch: Branch) -> None:
            await branch.turn()
            branch.finish(facts={"verdict": "good"})

    world = SmallWorld()
    batch = arl.Collector(world, world, recipes.GRPO.replace(rollout=Hinted()), task_pool=4)(tasks=2, group_size=2)
    assert batch.column("hint", "draw").tolist() == [0.0, 0.5] * 2
    assert len(set(batch.keys("verdict", "draw"))) == 1


def test_a_recipe_that_needs_a_fact_is_refused_by_name() -> None:
    world = SmallWorld()
    with pytest.raises(RecipeError, match=r"recipe 'copo': .* needs column 'answer_"):
        arl.Collector(world, world, recipes.COPO, task_pool=4)


def test_several_environments_are_mixed_and_several_engines_speak() -> None:
    class Debate(Rollout):
        async def group(self, group: Group) -> None:
            [pioneer] = await group.run([group.start(agent="policy")])
            await group.run([group.start(agent="critic", parent=pioneer)])

    class Named(SmallWorld):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Any]:
            tasks = super().tasks(count, split=split, start=start)
            return [Task(f"{self.name} {task.task_id}", "?", self.name, None) for task in tasks]

        def reset(self, task: Task, seed: int) -> Any:
            assert task.task_id.startswith(self.name), "each task is played in its own world"
            return super().reset(task, seed)

    critic = SmallWorld()
    critic.policy_version = 7
    collect = arl.Collector(
        {"policy": SmallWorld(), "critic": critic},
        {"maze": Named("maze"), "shop": Named("shop")},
        recipes.GRPO.replace(rollout=Debate()),
        task_pool=4,
    )
    batch = collect(tasks=8, group_size=2)
    trajectories = pl.DataFrame(batch.trajectories)
    assert trajectories.group_by("agent").len().sort("agent")["len"].to_list() == [8, 8]
    assert trajectories["task_id"].str.slice(0, 4).unique().sort().to_list() == ["maze", "shop"]
    actions = pl.DataFrame(batch.nodes).filter(pl.col("kind") == 1)
    assert actions.group_by("policy").agg(pl.col("policy_version").unique()).sort("policy").rows() == [
        (0, [0]),
        (1, [7]),
    ]
    both = {"one": SmallWorld(), "two": SmallWorld()}
    with pytest.raises(InvalidInputError, match="environments 'one' and 'two' both have a task 'train 0'"):
        arl.Collector(SmallWorld(), both, recipes.GRPO, task_pool=2)(tasks=1, group_size=1)


def test_observations_are_messages_and_tools_are_shown() -> None:
    schema = {"type": "function", "function": {"name": "add", "description": "adds", "parameters": {}}}
    prompts: list[str] = []

    class Episode:
        tools = [schema]  # noqa: RUF012
        observation = [  # noqa: RUF012
            {"role": "system", "content": "You add."},
            {"role": "user", "content": "What is 1 + 2?"},
        ]

        def __init__(self) -> None:
            self.turns = 0

        def step(self, action: str) -> StepResult:
            self.turns += 1
            if self.turns == 2:
                return StepResult(reward=float(action == "3"), terminated=True, success=action == "3")
            messages = [{"role": "tool", "content": "3"}, {"role": "user", "content": "so?"}]
            return StepResult(messages, flags=StepFlag.TOOL_RESULT)

        def state_key(self) -> bytes:
            return bytes([self.turns])

    class World:
        runs = "inline"

        def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
            del split
            return [Task(f"add {number}", "?", "x", None) for number in range(start, start + count)]

        def reset(self, task: Task, seed: int) -> Episode:
            del task, seed
            return Episode()

    tokenizer = bytes_tokenizer(*TEMPLATES["qwen"])

    def reply(tokens: np.ndarray) -> str:
        prompts.append(tokenizer.decode(tokens))
        return "3" if "so?" in prompts[-1] else "add(1, 2)"

    batch = arl.Collector(engine.Scripted(tokenizer, reply), World(), recipes.GRPO, task_pool=2)(tasks=1, group_size=1)
    assert batch.column("reward", "draw").tolist() == [1.0]
    assert "You add." in prompts[0]
    assert "adds" in prompts[0], "the tools are in the prompt"
    assert prompts[1].startswith(prompts[0] + "add(1, 2)"), "what was sampled is not rendered again"
    assert prompts[1].index("3", len(prompts[0]) + 9) < prompts[1].index("so?")


class Restoring(SmallWorld):
    """Count how episodes are created; each step costs one replay less with a snapshot."""

    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.wrong = wrong
        self.restored: list[tuple[Sequence[str], bytes | None]] = []
        self.steps = 0

    def reset(self, task: Task, seed: int) -> Any:
        episode = super().reset(task, seed)
        actions: list[str] = []
        step = episode.step

        def counted(action: str) -> Any:
            self.steps += 1
            actions.append(action)
            return step(action)

        episode.step = counted
        episode.snapshot = lambda: "|".join(actions).encode()
        return episode

    def restore(self, task: Task, seed: int, actions: Sequence[str], snapshot: bytes | None) -> Any:
        self.restored.append((list(actions), snapshot))
        episode = super().reset(task, seed)
        for action in actions if not self.wrong else []:
            episode.step(action)
        return episode


def long_episode(task: Task, seed: int, actions: list[str]) -> StepResult:
    del task
    if len(actions) < 3:
        return StepResult("go on", flags=StepFlag.TOOL_RESULT)
    return StepResult(reward=float(seed % 2), terminated=True, success=bool(seed % 2))


def test_episodes_are_restored_by_the_environments_own_method() -> None:
    program = EntropyBranching(budget=6, initial=2, probability=1.0)
    recipe = recipes.GRPO.replace(rollout=program)
    plain = SmallWorld(long_episode)
    expected = arl.Collector(plain, plain, recipe, task_pool=4)(tasks=2, group_size=2)
    world = Restoring()
    world.answer = long_episode
    batch = arl.Collector(world, world, recipe, task_pool=4)(tasks=2, group_size=2)
    assert batch.column("token", "token").tolist() == expected.column("token", "token").tolist()
    assert len(world.restored) > 0
    assert all(snapshot == "|".join(actions).encode() for actions, snapshot in world.restored)
    wrong = Restoring(wrong=True)
    wrong.answer = long_episode
    with pytest.warns(RuntimeWarning, match="state_key of step 1 was .* is not deterministic for task"):
        batch = arl.Collector(wrong, wrong, recipe, task_pool=4)(tasks=2, group_size=2)
    assert 4 in pl.DataFrame(batch.trajectories)["status"].to_list(), "never silently"


def test_it_works_inside_a_running_loop() -> None:
    world = SmallWorld()

    def collected() -> list[int]:
        batch = arl.Collector(world, world, recipes.GRPO, task_pool=4)(tasks=2, group_size=2)
        return batch.column("token", "token").tolist()

    async def inside() -> list[list[int]]:
        return [collected(), await asyncio.to_thread(collected)]

    assert asyncio.run(inside()) == [collected()] * 2


def test_programs_can_read_the_statistics_of_their_task(tmp_path: Path) -> None:
    statistics: list[dict[str, Any]] = []

    class Looking(Rollout):
        async def group(self, group: Group) -> None:
            statistics.append(dict(group.statistics))
            await group.run(group.start_many(group.size))

    world = SmallWorld()
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(world, world, recipes.GRPO.replace(rollout=Looking()), store=store, task_pool=2)
        for _ in range(3):
            collect.end_iteration(recipes.GRPO.credit(collect(tasks=2, group_size=3)), {})
    assert statistics[:2] == [{}, {}]
    assert [row["attempts"] for row in statistics[2:]] == [3.0, 3.0, 6.0, 6.0]


def test_listeners_hear_each_iteration() -> None:
    world = SmallWorld()
    received: list[tuple[int, Any]] = []
    collect = arl.Collector(world, world, recipes.GRPO, task_pool=2)
    collect.on_iteration(lambda iteration, metrics: received.append((iteration, metrics["loss"])))
    for iteration in range(2):
        collect.end_iteration(recipes.GRPO.credit(collect(tasks=1, group_size=2)), {"loss": iteration / 2})
    assert received == [(0, 0.0), (1, 0.5)]
