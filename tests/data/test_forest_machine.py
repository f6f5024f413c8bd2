"""Any order of operations on a forest, beside plain lists: trained tokens, contexts and draws."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import polars as pl
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from agentrl_core import Batch, Forest
from agentrl_core.env import StepFlag
from agentrl_core.exceptions import InvalidInputError, NotFoundError


@dataclass
class Lists:
    """A trajectory as plain lists."""

    handle: int
    name: str
    tokens: list[int] = field(default_factory=list)
    nodes: list[tuple[int, int, int]] = field(default_factory=list)
    """Handle, first token and end on the path of each node of the context."""
    steps: list[tuple[list[int], int, float | None]] = field(default_factory=list)
    """Context and action of each step, number of those tokens before the action, and reward."""
    open: int | None = None
    status: str = "running"
    rewritten: bool = False
    trained: bool = True

    def close(self, reward: float | None = None) -> None:
        if self.open is not None:
            self.steps.append((list(self.tokens), self.open, reward))
        self.open = None

    def append(self, node: int, tokens: list[int], *, action: bool) -> None:
        if not action:
            self.close()
        elif self.open is None:
            self.open = len(self.tokens)
        self.nodes.append((node, len(self.tokens), len(self.tokens) + len(tokens)))
        self.tokens += tokens

    def prefix(self, handle: int, name: str, end: int) -> Lists:
        child = copy.deepcopy(self)
        child.handle, child.name, child.status, child.trained = handle, name, "running", True
        child.tokens = self.tokens[:end]
        child.nodes = [(node, begin, min(stop, end)) for node, begin, stop in self.nodes if begin < end]
        begins = [begin for path, begin, _ in self.steps if begin < end < len(path)]
        if not self.rewritten:  # otherwise the whole path is forked
            child.steps = [step for step in self.steps if len(step[0]) <= end]
            child.open = begins[0] if begins else self.open
        child.open = child.open if child.open is not None and child.open < end else None
        return child


class Machine(RuleBasedStateMachine):
    """One group; nothing is frozen before the end."""

    rows = Bundle("rows")

    def __init__(self) -> None:
        super().__init__()
        self.forest = Forest(iteration=1, seed=2, reward_components=["a"])
        self.forest.add_group(0, "task")
        self.all: list[Lists] = []

    def add(self, row: Lists) -> Lists:
        self.all.append(row)
        return row

    def running(self, row: Lists) -> bool:
        """Return whether the row takes tokens, and check that the forest returns the same."""
        if row.status != "running":
            with pytest.raises(InvalidInputError, match="has ended"):
                self.forest.append(row.handle, [1], kind="observation")
        return row.status == "running"

    @rule(target=rows, prompt=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def start(self, prompt: list[int]) -> Lists:
        member = len(self.all)
        row = self.add(Lists(self.forest.start(0, member), f"m{member}"))
        row.append(self.forest.append(row.handle, prompt, kind="prompt"), prompt, action=False)
        return row

    @rule(row=rows, tokens=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def act(self, row: Lists, tokens: list[int]) -> None:
        if self.running(row):
            logprobs = [-0.5] * len(tokens)
            row.append(self.forest.append(row.handle, tokens, kind="action", logprobs=logprobs), tokens, action=True)

    @rule(row=rows, tokens=st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def observe(self, row: Lists, tokens: list[int]) -> None:
        if self.running(row):
            row.append(self.forest.append(row.handle, tokens, kind="observation"), tokens, action=False)

    @rule(row=rows, reward=st.integers(-2, 2))
    def pay(self, row: Lists, reward: int) -> None:
        if not self.running(row):
            return
        if row.open is None:
            with pytest.raises(InvalidInputError, match="no open action"):
                self.forest.step(row.handle, reward=reward)
        else:
            self.forest.step(row.handle, reward=reward, rewards=[reward])
            row.close(reward)

    @rule(target=rows, row=rows, at=st.integers(0, 99))
    def fork(self, row: Lists, at: int) -> Lists:
        name = f"f{len(self.all)}"
        end = len(row.tokens) if row.rewritten else 1 + at % len(row.tokens)
        if end == len(row.tokens):
            return self.add(row.prefix(self.forest.fork(row.handle), name, end))
        node, begin, _ = next(part for part in row.nodes if part[1] < end <= part[2])
        return self.add(row.prefix(self.forest.fork(row.handle, node=node, end=end - begin), name, end))

    @rule(target=rows, row=rows, at=st.integers(0, 99))
    def rollback(self, row: Lists, at: int) -> Lists:
        if row.rewritten:
            return row
        if row.status == "pruned":
            with pytest.raises(InvalidInputError, match=r"is pruned, so it has no gradient|is pruned; fork"):
                self.forest.rollback(row.handle, row.nodes[0][0])
            return row
        end = 1 + at % len(row.tokens)
        node, begin, _ = next(part for part in row.nodes if part[1] < end <= part[2])
        child = row.prefix(self.forest.rollback(row.handle, node, end - begin), f"b{len(self.all)}", end)
        row.close()
        row.status = "pruned"
        return self.add(child)

    @rule(row=rows, keep=st.integers(0, 99), more=st.lists(st.integers(90, 95), min_size=1, max_size=3))
    def rewrite(self, row: Lists, keep: int, more: list[int]) -> None:
        if not self.running(row):
            return
        prefix = row.tokens[: keep % (len(row.tokens) + 1)]
        shared = self.forest.rewrite(row.handle, prefix + more)
        assert shared == next(
            (place for place, (mine, new) in enumerate(zip(row.tokens, prefix + more, strict=False)) if mine != new),
            min(len(row.tokens), len(prefix + more)),
        )
        row.close()
        row.rewritten = row.rewritten or shared < len(row.tokens)
        row.tokens = prefix + more
        place = self.forest.running(0)
        node = int(place.node[place.trajectory.tolist().index(row.handle)])
        row.nodes = [(n, begin, min(stop, shared)) for n, begin, stop in row.nodes if begin < shared]
        if shared < len(row.tokens):
            row.nodes.append((node, shared, len(row.tokens)))

    @rule(row=rows, gradient_only=st.booleans())
    def prune(self, row: Lists, gradient_only: bool) -> None:
        if row.status == "pruned":
            return
        self.forest.prune(row.handle, "no use", gradient_only=gradient_only)
        if gradient_only:
            row.trained = False
        else:
            row.close()
            row.status = "pruned"

    @rule(row=rows)
    def finish(self, row: Lists) -> None:
        if not self.running(row):
            return
        if row.open is None and not row.steps:
            with pytest.raises(InvalidInputError, match="ends without an action"):
                self.forest.finish(row.handle)
            return
        self.forest.finish(row.handle, reward=1.0, info={"name": row.name})
        row.close()
        row.status = "finished"

    @precondition(lambda self: self.all)
    @invariant()
    def paths_are_those_of_the_lists(self) -> None:
        for row in self.all[-3:]:
            assert self.forest.tokens(row.handle).tolist() == row.tokens
        frontier = self.forest.running()
        running = [row for row in self.all if row.status == "running"]
        assert frontier.trajectory.tolist() == [row.handle for row in running]
        assert frontier.length.tolist() == [len(row.tokens) for row in running]
        with pytest.raises(NotFoundError):
            self.forest.tokens(len(self.all))

    def teardown(self) -> None:
        self.forest.abort()
        batch = self.forest.freeze()
        self.check(batch)
        super().teardown()

    def check(self, batch: Batch) -> None:
        finished = {row.name: row for row in self.all if row.status == "finished"}
        facts = pl.DataFrame(batch.trajectories)
        drawn = facts.filter(pl.col("status") == 0)["info"].str.json_decode(pl.Struct({"name": pl.String}))
        names = [part["name"] for part in drawn.to_list()] if len(drawn) else []
        untrained = facts.filter(pl.col("status") == 0)["info"].str.json_path_match("$.info.name").to_list()
        names = [name or other for name, other in zip(names, untrained, strict=True)]
        assert sorted(names) == sorted(finished)
        steps, tokens = batch.offsets("step"), batch.offsets("token")
        flat, mask = batch.column("token", "token").tolist(), batch.column("trainable", "token")
        position = batch.column("position", "token")
        flags = batch.column("flags", "step") & StepFlag.UNTRAINED
        for draw, name in enumerate(names):
            row = finished[name]
            assert steps[draw + 1] - steps[draw] == len(row.steps)
            assert (flags[steps[draw] : steps[draw + 1]] == 0).all() == row.trained
            for step, (path, begin, _) in zip(range(steps[draw], steps[draw + 1]), row.steps, strict=True):
                part = slice(tokens[step], tokens[step + 1])
                assert flat[part] == path[begin:]
                assert position[part].tolist() == list(range(begin, len(path)))
                assert not mask[part].any() or row.trained
        paid = [step[2] for name in names for step in finished[name].steps]
        known = np.array([np.nan if reward is None else reward for reward in paid], np.float32)
        np.testing.assert_array_equal(batch.column("reward", "step"), known)
        packs = batch.plan(np.arange(len(names)), 100_000) if names else []
        trained = np.concatenate([pack.token for pack in packs]) if packs else np.zeros(0, np.int64)
        assert sorted(trained.tolist()) == np.flatnonzero(mask).tolist(), "each trained token is in one sequence"
        contexts = {tuple(path) for row in finished.values() for path, _, _ in row.steps}
        for pack in packs:
            for begin, end in zip(pack.cu_seqlens[:-1], pack.cu_seqlens[1:], strict=True):
                sequence = tuple(pack.input_ids[begin:end].tolist())
                assert any(path[: len(sequence)] == sequence for path in contexts)
        tree = batch.tree()
        assert len(tree) == len(batch.nodes)
        assert tree.leaf_count[tree.parent == -1].sum() == len(tree.leaves)


TestForest = Machine.TestCase
TestForest.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
