"""Riddles with scripted answers: run a program on them and read its group back as texts.

An action with `<answer>right</answer>` in it solves a riddle, another answer does not, and either ends the episode.
`<bad>` is a call that fails; the reply to anything else is `go on`. Tokens are bytes, so a text has one token per
letter.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from hand_made import tiny_model
from sampled import RecordingEngine, check_sampled
from templates import TEMPLATES, bytes_tokenizer

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.engine import Request, Segment
from agentrl_core.engine.scripted import ScriptedReply
from agentrl_core.env import StepFlag, StepResult, Task
from agentrl_core.recipe import Recipe
from agentrl_core.rollout import Rollout

RIGHT, WRONG = "<answer>right</answer>", "<answer>wrong</answer>"
STATUS = ("finished", "truncated", "aborted", "pruned", "failed", "partial")
ROLE = ("member", "baseline", "helper")
TABLES = ("nodes", "steps", "trajectories", "draws", "decisions")
TOKENIZER = bytes_tokenizer(*TEMPLATES["chatml"])


class Riddle:
    """An episode of a riddle."""

    observation: Any = ""

    def __init__(self, task: Task) -> None:
        self.observation = task.question
        self.actions: list[str] = []

    def step(self, action: str) -> StepResult:
        self.actions.append(action)
        if "<answer>" in action:
            right = RIGHT in action
            return StepResult(reward=float(right), terminated=True, success=right)
        if "<bad>" in action:
            return StepResult("error", flags=StepFlag.TOOL_ERROR | StepFlag.TOOL_RESULT)
        return StepResult("go on", flags=StepFlag.TOOL_RESULT)

    def state_key(self) -> bytes:
        return repr(self.actions).encode()


class Riddles:
    """Tasks and their solutions. Episodes run in the event loop, so that requests come in the order of the program."""

    runs = "inline"

    def __init__(self, solution: Sequence[str] = ("0123456789", RIGHT)) -> None:
        self.solution = tuple(solution)

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        names = [f"{split} {number}" for number in range(start, start + count)]
        return [Task(name, "riddle?", "riddles", None, self.solution) for name in names]

    def reset(self, task: Task, seed: int) -> Riddle:
        del seed
        return Riddle(task)


class Paid(Riddle):
    """An episode that ends with the number in its action as reward."""

    def step(self, action: str) -> StepResult:
        return StepResult(reward=float(action), terminated=True, success=float(action) > 0)


class PaidRiddles(Riddles):
    """Riddles of such episodes."""

    def reset(self, task: Task, seed: int) -> Riddle:
        del seed
        return Paid(task)


Speaker = Callable[[str, Request], "str | engine.ScriptedReply"]
"""The text that is sampled for a context, given as a text."""


def script(speaker: Speaker) -> engine.Scripted:
    """Return an engine that samples the text that a function returns for the context, with a log-prob per token."""

    def reply(request: Request) -> ScriptedReply:
        answer = speaker(TOKENIZER.decode(request.tokens), request)
        if isinstance(answer, ScriptedReply):
            return answer
        count = len(scripted.chat.action(answer))
        numbers = [((request.seed >> 8) % 97 + place) % 13 / 8 for place in range(count)]
        return ScriptedReply(answer, [-number for number in numbers], numbers)

    scripted = engine.Scripted(TOKENIZER, reply)
    return scripted


def in_turn(*answers: str) -> Speaker:
    """Return a speaker that gives these texts in the order of requests; the last one repeats."""
    remaining = list(answers)

    def speak(context: str, request: Request) -> str:
        del context, request
        return remaining.pop(0) if len(remaining) > 1 else remaining[0]

    return speak


@dataclass(frozen=True)
class Row:
    """A trajectory, as texts."""

    role: str
    status: str
    drawn: bool
    text: str
    trained: str

    @property
    def prompt(self) -> str:
        return self.text.split("<|im_start|>user\n", 1)[1].split("<|im_end|>", 1)[0]

    @property
    def actions(self) -> list[str]:
        parts = self.text.split("<|im_start|>assistant\n")[1:]
        return [part.split("<|im_end|>", 1)[0] for part in parts]


def rows_of(batch: arl.Batch) -> list[Row]:
    """Return the trajectories of a batch, in order, each with the text of its path and that of its trained tokens."""
    nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).iter_rows(named=True)}
    draws = pl.DataFrame(batch.draws)["trajectory_id"].to_list()
    offsets, steps = batch.offsets("step"), batch.offsets("token")
    tokens, trainable = batch.column("token", "token"), batch.column("trainable", "token").astype(bool)
    trained = {}
    for place, trajectory in enumerate(draws):
        span = slice(steps[offsets[place]], steps[offsets[place + 1]])
        trained[trajectory] = TOKENIZER.decode(tokens[span][trainable[span]])
    rows = []
    for row in pl.DataFrame(batch.trajectories).iter_rows(named=True):
        path: list[int] = []
        node, end = row["leaf_node_id"], row["leaf_end"]
        while node is not None:
            path = nodes[node]["tokens"][:end] + path
            node, end = nodes[node]["parent_id"], nodes[node]["parent_end"]
        name = row["trajectory_id"]
        rows.append(
            Row(
                ROLE[row["role"]], STATUS[row["status"]], name in trained, TOKENIZER.decode(path), trained.get(name, "")
            )
        )
    return rows


@dataclass
class Run:
    """The trajectories that a program made of riddles."""

    batch: arl.Batch
    rows: list[Row]
    num_requests: int
    sampled: int

    @property
    def drawn(self) -> list[Row]:
        return [row for row in self.rows if row.drawn]

    def fact(self, name: str) -> list[float]:
        return self.batch.column(name, "draw").tolist()


def solve(
    program: Rollout | Recipe,
    speaker: Speaker,
    *,
    world: Any = None,
    tasks: int = 1,
    group_size: int = 4,
    **options: Any,
) -> Run:
    """Run a program, or that of a recipe with its reward, on riddles; check that exactly the samples are trained."""
    recipe = program if isinstance(program, Recipe) else recipes.GRPO.replace(rollout=program)
    recorder = RecordingEngine(script(speaker))
    collect = arl.Collector(recorder, Riddles() if world is None else world, recipe, task_pool=64, **options)
    batch = collect(tasks=tasks, group_size=group_size)
    return Run(batch, rows_of(batch), len(recorder.exchanges), check_sampled(batch, recorder))


class Stopping:
    """An engine that fails after a number of segments."""

    def __init__(self, inner: Any, after: int, recorded: set[int]) -> None:
        self._inner = inner
        self._remaining = after
        self._recorded = recorded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def generate(self, request: Request) -> Segment:
        assert request.seed not in self._recorded, "what was recorded is not asked for again"
        self._remaining -= 1
        if self._remaining < 0:
            raise KeyboardInterrupt
        segment: Segment = await self._inner.generate(request)
        self._recorded.add(request.seed)
        return segment


def check_resumes(program: Rollout | Recipe, speaker: Speaker, *, every: int = 3, **options: Any) -> int:
    """Check that equal seeds give equal trees even if the process restarts repeatedly; return the number of restarts.

    Each restart makes a new collector on the same store; no recorded response is requested again.
    """
    recipe = program if isinstance(program, Recipe) else recipes.GRPO.replace(rollout=program)
    size = {"tasks": options.pop("tasks", 2), "group_size": options.pop("group_size", 4)}
    world = options.pop("world", None) or Riddles()

    def uninterrupted() -> arl.Batch:
        return arl.Collector(script(speaker), world, recipe, task_pool=64, seed=7, **options)(**size)

    expected = uninterrupted()
    recorded: set[int] = set()
    stops = 0
    with tempfile.TemporaryDirectory() as name:
        while True:
            with arl.Store.open(Path(name) / "run", sync="never") as store:
                engine_ = Stopping(script(speaker), every, recorded)
                collect = arl.Collector(engine_, world, recipe, store=store, task_pool=64, seed=7, **options)
                try:
                    batch = collect(**size)
                except KeyboardInterrupt:
                    stops += 1
                    continue
            break
    for again in (uninterrupted(), batch):
        for table in TABLES:
            one, other = (
                pl.DataFrame(getattr(each, table)).drop("created_us", strict=False) for each in (expected, again)
            )
            assert one.equals(other, null_equal=True), table
    assert stops, "it was stopped"
    return stops


def step(recipe: Recipe, batch: arl.Batch) -> int:
    """Annotate a batch for a recipe, compute credit and take the optimizer steps; return their number."""
    torch.manual_seed(0)
    policy = tiny_model("llama", torch.float32, vocab_size=len(TOKENIZER), max_position_embeddings=2048)
    if any("value" in training.loss.outputs for training in recipe.losses()):
        policy.value_head = torch.nn.Linear(policy.config.hidden_size, 1)
    before = [parameter.detach().clone() for parameter in policy.parameters()]
    optimizer = torch.optim.SGD(policy.parameters(), lr=0.1)
    recipe = recipe.at(0)
    for name in dict.fromkeys(
        column.name for column in recipe.model_columns if not batch.has(column.name, column.level)
    ):
        batch = arl.annotate(batch, name, policy, max_tokens=65536)
    if batch.has("recomputed_logprob", "token"):  # as if the speaker was the policy, so that no ratio is far from 1
        sampled, recomputed = (batch.column(name, "token") for name in ("behaviour_logprob", "recomputed_logprob"))
        batch = batch.with_columns("token", recomputed_logprob=np.where(np.isnan(sampled), recomputed, sampled))
    updates = recipe.updates(recipe.credit(batch))
    for update in updates:
        for pack in update.pack(max_tokens=65536):
            update.loss(pack.run(policy), pack).backward()
        optimizer.step()
    assert all(torch.isfinite(parameter).all() for parameter in policy.parameters())
    moved = [float((one - other.detach()).abs().max()) for one, other in zip(before, policy.parameters(), strict=True)]
    assert max(moved) > 1e-7, f"the step changed weights by {max(moved)}, which is rounding"
    return len(updates)
