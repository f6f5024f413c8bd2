"""Batches for tests of components: small ones by parameters, random ragged ones, and a plain view of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from agentrl_core import Batch, Forest
from agentrl_core.advantage import GroupRelative
from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.component.rows import FLAGS
from agentrl_core.exceptions import NotFoundError


def small(draws: Sequence[tuple[int, Sequence[int]]], **columns: Sequence[float]) -> Batch:
    """Return a batch of draws in order of groups, each given by a group and the numbers of tokens of its steps.

    Columns named `draw_x`, `step_x` or `token_x` become column `x` of that level.
    """
    forest = Forest()
    for group in sorted({group for group, _ in draws}):
        forest.add_group(group, f"task {group}")
    for member, (group, steps) in enumerate(draws):
        trajectory = forest.start(group, member)
        forest.append(trajectory, [1], kind="prompt")
        for step, count in enumerate(steps):
            if step:
                forest.append(trajectory, [2], kind="observation", state=f"after {step}")
            forest.append(trajectory, [3] * count, kind="action", logprobs=[-1.0] * count)
            forest.step(trajectory)
        forest.finish(trajectory, reward=0.0, success=False)
    batch = forest.freeze()
    for name, values in columns.items():
        level, _, column = name.partition("_")
        batch = batch.with_columns(level, **{column: np.asarray(values)})
    return batch


@dataclass
class Token:
    """An action token."""

    trained: bool
    logprob: float
    row: int


@dataclass
class Step:
    """A step of a draw."""

    row: int
    reward: float
    state: int
    physical: tuple[int, int]
    own: bool
    tokens: list[Token] = field(default_factory=list)

    @property
    def trained(self) -> int:
        return sum(token.trained for token in self.tokens)


@dataclass
class Draw:
    """A draw of a batch."""

    row: int
    group: int
    score: float
    steps: list[Step] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        return bool(np.isfinite(self.score))

    @property
    def tokens(self) -> list[Token]:
        return [token for step in self.steps for token in step.tokens]

    @property
    def trained(self) -> int:
        return sum(token.trained for token in self.tokens)


def plain(batch: Batch) -> list[Draw]:
    """Return the batch as nested lists, read through its columns one row at a time."""
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    groups, scores = batch.column("group_id", "draw"), batch.column("score", "draw")
    rewards, states = batch.column("reward", "step"), batch.keys("state_key", "step")
    origins, numbers = batch.column("origin_trajectory_id", "step"), batch.column("step", "step")
    owners = batch.column("trajectory_id", "draw")
    trained, logprobs = batch.column("trainable", "token"), batch.column("behaviour_logprob", "token")
    out = []
    for draw in range(batch.num_draws):
        copied = Draw(draw, int(groups[draw]), float(scores[draw]))
        for step in range(steps[draw], steps[draw + 1]):
            physical = int(origins[step]), int(numbers[step])
            own = physical[0] == owners[draw]
            copied.steps.append(Step(step, float(rewards[step]), int(states[step]), physical, own))
            for token in range(tokens[step], tokens[step + 1]):
                copied.steps[-1].tokens.append(Token(bool(trained[token]), float(logprobs[token]), token))
        out.append(copied)
    return out


def ragged(seed: int, *, groups: int = 5, members: int = 1, unscored: bool = True, iteration: int = 0) -> Batch:
    """Return groups of draws of one to four steps, with forks between steps, masked tokens and unscored draws."""
    rng = np.random.default_rng(seed)
    forest = Forest(iteration=iteration, seed=seed)
    for group in range(groups):
        forest.add_group(group, f"task {group % 3}")
        for member in range(int(rng.integers(members, members + 3))):
            live = [forest.start(group, member)]
            forest.append(live[0], [1, group], kind="prompt")
            for step in range(int(rng.integers(1, 5))):
                for trajectory in list(live):
                    if step:
                        state = f"state {rng.integers(0, 3)}"
                        forest.append(trajectory, [2], kind="observation", state=state)
                    count = int(rng.integers(1, 5))
                    forest.append(
                        trajectory,
                        rng.integers(0, 50, size=count).tolist(),
                        kind="action",
                        logprobs=(-rng.exponential(size=count)).tolist(),
                        entropies=rng.exponential(size=count).tolist(),
                        trainable=[1, *(rng.random(count - 1) < 0.7).astype(int).tolist()],
                    )
                    forest.step(trajectory, reward=float(rng.integers(0, 3)) if rng.random() < 0.6 else None)
                    if rng.random() < 0.25 and len(live) < 3:
                        live.append(forest.fork(trajectory))
            for trajectory in live:
                reward = None if unscored and rng.random() < 0.15 else float(rng.integers(0, 3))
                forest.finish(trajectory, reward=reward, success=bool(reward))
    batch = forest.freeze()
    return batch.with_columns("draw", score=batch.column("reward", "draw"))


def has(batch: Batch, level: str, name: str) -> bool:
    """Return whether there is a column of numbers or of keys, or a named bit of the steps' flags."""
    if batch.has(name, level) or (name in FLAGS and level != "draw"):
        return True
    try:
        batch.keys(name, level)
    except NotFoundError:
        return False
    return True


def bare() -> Batch:
    """Return groups of at least five draws, with scores from 0 to 1."""
    batch = ragged(0, members=5)
    return batch.with_columns("draw", score=batch.column("score", "draw") / 2)


def filled(component: BatchComponent, batch: Batch | None = None, *, without: str = "") -> Batch:
    """Return a batch with scores and the columns that the component needs, except one."""
    batch = bare() if batch is None else batch
    rng = np.random.default_rng(0)
    for level, name in component.needs:
        if has(batch, level, name) or name == without:
            continue
        count = batch.num_draws if level == "draw" else int(batch.offsets(level)[-1])
        if name.startswith("item_needs") or name == "turn":
            values = np.zeros(count, dtype=np.int64)  # no item depends on itself, and all steps are in one turn
        elif "logprob" in name:
            values = -rng.exponential(size=count)
        elif name == "greedy":
            values = np.ones(count)  # every group needs one
        else:
            values = rng.integers(0, 2, size=count)
        batch = batch.with_columns(level, **{name: values})
    return batch


def with_tokens(seed: int, **names: float) -> Batch:
    """Return a ragged batch with an advantage and token columns of numbers of a given size; NaN if not trained."""
    batch = GroupRelative()(ragged(seed))
    rng = np.random.default_rng(seed + 1)
    trained = batch.column("trainable", "token").astype(bool)
    for name, size in names.items():
        values = size * rng.exponential(size=len(trained))
        batch = batch.with_columns("token", **{name: np.where(trained, values, np.nan).astype(np.float32)})
    return batch


def counted(batch: Batch) -> list[bool]:
    """Return whether each token is trained and its draw has a score."""
    return [token.trained and draw.valid for draw in plain(batch) for token in draw.tokens]


def means(batch: Batch, name: str, level: str) -> list[float | None]:
    """Return the mean of a token column over the trained tokens of each valid step or draw; None if it has none."""
    values = batch.column(name, "token").astype(float)
    result: list[float | None] = []
    for draw in plain(batch):
        for part in [draw] if level == "draw" else draw.steps:
            rows = [token.row for token in part.tokens if token.trained and draw.valid]
            result.append(float(np.mean(values[rows])) if rows else None)
    return result
