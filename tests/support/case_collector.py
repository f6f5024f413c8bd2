"""Cases that a collector runs: their numbers depend on selection, replay or the iteration.

A case with a table `pool` is run by a collector with a store, one iteration after another. The pool has `pool.tasks`
tasks (`train 0`, `train 1`, ...) with `pool.columns`, and phase select chooses among them. An iteration requests
`tasks` and `group_size`. `answers` holds the rewards of its episodes, by task in the order of members; `metrics` holds
the metrics at its end.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from arithmetic import number

from agentrl_core import Batch, Collector, Store
from agentrl_core.engine import Request, Segment
from agentrl_core.env import ExtraColumn, StepResult, Task
from agentrl_core.recipe import Recipe

END = 9


class Tasks(list[Task]):
    """Tasks with columns."""

    columns: Mapping[str, Any]


@dataclass
class World:
    """An engine that samples `5`, and episodes of one turn that pay the rewards of the case, member after member."""

    pool: Mapping[str, Any]
    answers: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)

    vocabulary_size = 128
    entropy_estimator = "exact"
    shares_parameters = False
    policy_version = 0
    num_answers = 0
    runs = "inline"

    def __post_init__(self) -> None:
        names = self.pool.get("facts", [])
        self.facts = {name: ExtraColumn("trajectory") for name in names}
        self.chat: Any = SimpleNamespace(
            tokenizer=None,
            prompt=lambda text: np.array([1, 2 + int(text)], np.int32),
            observation=lambda text: np.array([1, len(text)], np.int32),
            decode=lambda tokens: " ".join(map(str, tokens)),
            stop_token_ids=(END,),
            end_of_turn=END,
        )

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        numbers = range(start, min(start + count, self.pool["tasks"]))
        tasks = Tasks(Task(f"{split} {place}", str(place), "all", None) for place in numbers)
        columns = {name: np.array(values, np.float64) for name, values in self.pool.get("columns", {}).items()}
        tasks.columns = {name: values[list(numbers)] for name, values in columns.items()}
        return tasks

    def reset(self, task: Task, seed: int) -> Any:
        del seed
        remaining = self.answers.get(task.task_id, [])
        answer = remaining.pop(0) if remaining else {"reward": 0}
        outcome = StepResult(
            reward=number(answer["reward"]),
            terminated=True,
            success=answer.get("success", number(answer["reward"]) > 0),
            facts={name: number(value) for name, value in answer.get("facts", {}).items()},
        )
        return SimpleNamespace(observation=task.question, step=lambda _: outcome, state_key=lambda: b"begin")

    async def generate(self, request: Request) -> Segment:
        self.num_answers += 1  # no two answers are equal, so each has its own model outputs
        tokens = np.array([10 + self.num_answers, END], np.int32)
        return Segment(tokens, np.full(2, -1, np.float32), np.ones(2, np.float32), "stop", 0, request.seed)

    def update_weights(self, _model: object, version: int) -> None:
        self.policy_version = version


class Run:
    """A run of a case, an iteration at a time."""

    def __init__(self, recipe: Recipe, pool: Mapping[str, Any], store: Store) -> None:
        self.world = World(pool)
        self.recipe = recipe
        self.collect = Collector(self.world, self.world, recipe, store=store, seed=1, task_pool=pool["tasks"])

    def batch(self, iteration: Mapping[str, Any]) -> Batch:
        """Return the batch of the iteration; the draw column `selected` holds its selection."""
        self.world.answers = {task: list(answers) for task, answers in iteration.get("answers", {}).items()}
        batch = self.collect(tasks=iteration["tasks"], group_size=iteration["group_size"])
        places = [int(task.rpartition(" ")[2]) for task in batch.texts("task_id", "draw")]
        return batch.with_columns("draw", selected=np.array(places, np.float64))

    def options(self, expect: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return the values at these places of the recipe in the open iteration."""
        now = self.recipe.at(self.collect.iteration, self.collect._now().components)
        options = {}
        for place in expect:
            value: Any = now
            for part in place.split("."):
                value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
            options[f"option.{place}"] = np.array([float(value)])
        return options

    def close(self, batch: Batch, iteration: Mapping[str, Any]) -> None:
        """End the iteration with its metrics."""
        self.collect.end_iteration(batch, iteration.get("metrics", {}))


@contextmanager
def running(recipe: Recipe, pool: Mapping[str, Any]) -> Iterator[Run]:
    """Open a run in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder) / "run", sync="never") as store:
        yield Run(recipe, pool, store)
