"""A model of a Forest in plain lists, as a reference for tests. Only Polars reads the tables here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl

from agentrl_core import Batch, Forest

TABLES = ("nodes", "steps", "trajectories", "draws", "tasks", "decisions")
ACTION = 1


@dataclass(frozen=True)
class Token:
    """A token with the values it was appended with."""

    token: int
    kind: str
    logprob: float | None = None
    version: int | None = None
    trainable: bool = False


@dataclass
class Path:
    """A trajectory as plain lists."""

    handle: int
    group: int
    fork_path: tuple[Any, ...]
    """The member, then position and ordinal of each fork: this sorts rows."""
    tokens: list[Token] = field(default_factory=list)
    nodes: list[tuple[int, int]] = field(default_factory=list)
    """The handle of each node, and the position after its last token on this path."""
    steps: list[tuple[int, int, float | None]] = field(default_factory=list)
    """Begin, end and reward of each closed action."""
    open_since: int | None = None
    forks: int = 0
    status: str = "running"
    reward: float | None = None

    def fork(self, handle: int, end: int) -> Path:
        """Return a path that shares the first `end` tokens with this one."""
        self.forks += 1
        child = Path(handle, self.group, (*self.fork_path, (end, self.forks - 1)), self.tokens[:end])
        begin = 0
        for node, stop in self.nodes:
            if begin < end:
                child.nodes.append((node, min(stop, end)))
            begin = stop
        child.steps = [step for step in self.steps if step[1] <= end]
        going_on = [begin for begin, stop, _ in self.steps if begin < end < stop]
        if self.open_since is not None and self.open_since < end:
            going_on.append(self.open_since)
        child.open_since = going_on[0] if going_on else None
        return child

    def close(self, reward: float | None = None) -> None:
        """End the open action, if there is one."""
        if self.open_since is not None:
            self.steps.append((self.open_since, len(self.tokens), reward))
        self.open_since = None


class Played:
    """A Forest and its model in lists."""

    def __init__(self, *, iteration: int = 0, seed: int = 0) -> None:
        self.forest = Forest(iteration=iteration, seed=seed)
        self.paths: list[Path] = []

    def start(self, group: int, member: int) -> Path:
        path = Path(self.forest.start(group, member), group, (member,))
        self.paths.append(path)
        return path

    def append(self, path: Path, tokens: list[Token], **options: object) -> int:
        """Append one node: all its tokens have one kind and version."""
        kind = tokens[0].kind
        if kind == "action":
            options["logprobs"] = [token.logprob for token in tokens]
            options["trainable"] = [int(token.trainable) for token in tokens]
            options["policy_version"] = tokens[0].version
            if path.open_since is None:
                path.open_since = len(path.tokens)
        else:
            path.close()
        node = self.forest.append(path.handle, [token.token for token in tokens], kind=kind, **options)
        path.tokens.extend(tokens)
        path.nodes.append((node, len(path.tokens)))
        return node

    def step(self, path: Path, reward: float | None) -> None:
        self.forest.step(path.handle, reward=reward)
        path.close(reward)

    def fork(self, path: Path, end: int) -> Path:
        """Share the first `end` tokens; at the border of two nodes, the fork is after the first of them."""
        if end == len(path.tokens):
            handle = self.forest.fork(path.handle, ordinal=path.forks)
        else:
            begins = [0, *(stop for _, stop in path.nodes)]
            node, begin = next(
                (node, begin) for (node, stop), begin in zip(path.nodes, begins, strict=False) if end <= stop
            )
            handle = self.forest.fork(path.handle, node=node, end=end - begin, ordinal=path.forks)
        child = path.fork(handle, end)
        self.paths.append(child)
        return child

    def finish(self, path: Path, reward: float | None, status: str = "finished") -> None:
        self.forest.finish(path.handle, reward=reward, status=status, success=reward is not None and reward > 0)
        path.close()
        path.status, path.reward = status, reward

    def prune(self, path: Path) -> None:
        self.forest.prune(path.handle, "test")
        path.close()
        path.status = "pruned"

    def freeze(self) -> tuple[Batch, list[Path]]:
        """Return the batch, and the paths in the order of its table `trajectories`; abort running paths."""
        self.forest.abort()
        for path in self.paths:
            path.close()
            path.status = "aborted" if path.status == "running" else path.status
        paths = [path for path in self.paths if path.tokens]
        return self.forest.freeze(), sorted(paths, key=lambda path: (path.group, path.fork_path))


def frames(batch: Batch) -> dict[str, pl.DataFrame]:
    """Return the tables without creation times, which equality ignores."""
    return {name: pl.DataFrame(getattr(batch, name)).drop("created_us", strict=False) for name in TABLES}


def same(first: Batch, second: Batch) -> bool:
    mine, other = frames(first), frames(second)
    return all(mine[name].equals(other[name], null_equal=True) for name in TABLES)


def rebuilt(nodes: pl.DataFrame, trajectories: pl.DataFrame) -> list[list[Token]]:
    """Return the paths of trajectories from the tables alone."""
    kinds = ["prompt", "action", "observation", "injected"]
    rows = {row["node_id"]: row for row in nodes.iter_rows(named=True)}
    paths = []
    for trajectory in trajectories.iter_rows(named=True):
        parts: list[list[Token]] = []
        node: int | None = trajectory["leaf_node_id"]
        end = trajectory["leaf_end"]
        while node is not None:
            row = rows[node]
            action = row["kind"] == ACTION
            logprobs = row["logprobs"] or [None] * len(row["tokens"])
            mask = row["trainable"] or [int(action)] * len(row["tokens"])
            part = [
                Token(token, kinds[row["kind"]], logprob, row["policy_version"], trained == 1)
                for token, logprob, trained in zip(row["tokens"], logprobs, mask, strict=True)
            ][:end]
            parts.append(part)
            node, end = row["parent_id"], row["parent_end"]
        paths.append([token for part in reversed(parts) for token in part])
        begins = [rows[trajectory["leaf_node_id"]]["start"]]
        assert begins[0] + len(parts[0]) == len(paths[-1]), "`start` is the position of a node's first token"
    return paths


def action_of(rng: np.random.Generator, count: int, *, masked: float = 0.0) -> list[Token]:
    version = int(rng.integers(0, 3))
    return [
        Token(
            int(rng.integers(0, 50)),
            "action",
            float(np.float32(-rng.exponential())),
            version,
            bool(rng.random() >= masked),
        )
        for _ in range(count)
    ]


def context_of(rng: np.random.Generator, kind: str, count: int) -> list[Token]:
    return [Token(int(rng.integers(0, 50)), kind) for _ in range(count)]


def grow(
    seed: int, *, groups: int = 3, members: int = 3, turns: int = 4, masked: float = 0.3, iteration: int = 0
) -> tuple[Batch, list[Path]]:
    """Return random groups: several turns, forks anywhere after the prompt, masked tokens, some pruned or truncated."""
    rng = np.random.default_rng(seed)
    played = Played(iteration=iteration, seed=seed)
    for group in range(groups):
        played.forest.add_group(group, f"task {group % 2}")
        prompt = context_of(rng, "prompt", int(rng.integers(1, 6)))
        live = []
        for member in range(members):
            live.append(played.start(group, member))
            played.append(live[-1], prompt)
        for turn in range(turns):
            for path in list(live):
                chance = rng.random()
                if chance < 0.15 and turn:
                    live.append(played.fork(path, int(rng.integers(len(prompt), len(path.tokens) + 1))))
                if chance > 0.9:
                    continue
                temperature = float(rng.uniform(0.5, 1.5))
                played.append(path, action_of(rng, int(rng.integers(1, 6)), masked=masked), temperature=temperature)
                if rng.random() < 0.8:
                    played.step(path, float(rng.integers(0, 3)) if rng.random() < 0.5 else None)
                    if rng.random() < 0.8:
                        state = f"state {rng.integers(0, 3)}"
                        played.append(path, context_of(rng, "observation", int(rng.integers(1, 4))), state=state)
        for path in live:
            if rng.random() < 0.1:
                played.prune(path)
                continue
            if not path.steps and path.open_since is None:
                played.append(path, action_of(rng, 2))
            reward = None if rng.random() < 0.1 else float(rng.integers(0, 3))
            played.finish(path, reward, "finished" if rng.random() < 0.8 else "truncated")
    return played.freeze()


Turn = tuple[str, int]
"""The next move of a trajectory, `act`, `observe`, `pay` or `fork`, and a number that parametrises it."""


def play(scripts: list[list[list[Turn]]], pick: Callable[[int], int]) -> tuple[Batch, list[Path]]:
    """Play the scripts of the groups' members; `pick` chooses the next one among the runnable ones.

    A fork plays the rest of its parent's script, but does not fork again. So the result does not depend on `pick`.
    """
    played = Played(iteration=1, seed=2)
    running: list[Iterator[None]] = []

    def act(path: Path, script: list[Turn], salt: int) -> Iterator[None]:
        for place, (what, number) in enumerate(script):
            rng = np.random.default_rng([path.group, *np.hstack(path.fork_path), place, number, salt])
            if what == "act":
                played.append(path, action_of(rng, 1 + number % 5))
            elif what == "observe":
                played.append(path, context_of(rng, "observation", 1 + number % 3))
            elif what == "pay" and path.open_since is not None:
                played.step(path, float(number))
            elif what == "fork":
                child = played.fork(path, 1 + number % len(path.tokens))
                rest = [turn for turn in script[place + 1 :] if turn[0] != "fork"]
                running.append(act(child, rest, 1))
            elif what == "prune":
                played.prune(path)
                return
            yield
        if path.steps or path.open_since is not None:
            played.finish(path, float(len(path.tokens)))

    def begin(group: int, member: int, script: list[Turn]) -> Iterator[None]:
        path = played.start(group, member)
        yield
        played.append(path, context_of(np.random.default_rng([group, member // 2]), "prompt", 3))
        yield
        yield from act(path, script, 0)

    for group, members in enumerate(scripts):
        played.forest.add_group(group, f"task {group}")
        running.extend(begin(group, member, script) for member, script in enumerate(members))
    while running:
        chosen = pick(len(running))
        if next(running[chosen], "done") == "done":
            del running[chosen]
    return played.freeze()


GROUPS, MEMBERS, TURNS = 6, 4, 8


def grow_member(forest: Forest, group: int, member: int, *, turns: int = TURNS) -> None:
    """A program that depends only on the place, with forks without ordinals."""
    rng = np.random.default_rng([group, member])
    trajectory = forest.start(group, member)
    forest.append(trajectory, [group, 1, member % 2], kind="prompt")
    live = [trajectory]
    for turn in range(turns):
        for place, handle in enumerate(list(live)):
            tokens = rng.integers(2, 90, int(rng.integers(1, 6)))
            node = forest.append(handle, tokens, kind="action", logprobs=-rng.random(len(tokens)))
            if turn == place:
                live.extend(forest.fork(handle, node=node, end=1, count=2))
            forest.step(handle, reward=float(turn))
            forest.append(handle, [turn, place], kind="observation")
    for handle in live:
        forest.append(handle, rng.integers(2, 90, 2), kind="action", logprobs=[-0.5, -0.5])
        forest.finish(handle, reward=float(rng.integers(0, 3)))


def empty(groups: range = range(GROUPS)) -> Forest:
    forest = Forest(iteration=1, seed=3)
    for group in groups:
        forest.add_group(group, f"task {group}")
    return forest


def grown(groups: range) -> Batch:
    """Run the programs of some groups one after the other."""
    forest = empty(groups)
    for group in groups:
        for member in range(MEMBERS):
            grow_member(forest, group, member)
    return forest.freeze()
