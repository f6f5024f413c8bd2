"""The Forest against plain lists, in every order of operations, from one thread and from many."""

from __future__ import annotations

import threading

import numpy as np
import polars as pl
import pytest
from forests import Path, Played, Token, action_of, context_of, frames, play, rebuilt, same
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl_core import Batch, Forest

tokens = st.integers(0, 2**31 - 1)
logprobs = st.floats(-30.0, 0.0, width=32)


def check_against_lists(batch: Batch, paths: list[Path]) -> None:
    """Compare every table and level with the lists."""
    tables = frames(batch)
    assert rebuilt(tables["nodes"], tables["trajectories"]) == [path.tokens for path in paths]
    steps = tables["steps"]
    drawn = [row for row, path in enumerate(paths) if path.status in ("finished", "truncated")]
    assert tables["draws"]["trajectory_id"].to_list() == drawn
    assert steps["trajectory_id"].to_list() == [row for row, path in enumerate(paths) for _ in path.steps]
    assert steps["reward"].to_list() == [reward for path in paths for _, _, reward in path.steps]
    assert tables["trajectories"]["reward"].to_list() == [path.reward for path in paths]
    starts = dict(zip(tables["nodes"]["node_id"], tables["nodes"]["start"], strict=True))
    assert [starts[node] for node in steps["first_node_id"]] == [begin for path in paths for begin, _, _ in path.steps]
    # The levels: steps of draws, and their tokens.
    expected = [paths[row].tokens[begin:end] for row in drawn for begin, end, _ in paths[row].steps]
    flat = [token for step in expected for token in step]
    positions = [place for row in drawn for begin, end, _ in paths[row].steps for place in range(begin, end)]
    assert batch.offsets("step").tolist() == np.cumsum([0, *(len(paths[row].steps) for row in drawn)]).tolist()
    assert batch.offsets("token").tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert batch.column("position", "token").tolist() == positions
    assert batch.column("token", "token").tolist() == [token.token for token in flat]
    assert batch.column("behaviour_logprob", "token").tolist() == [token.logprob for token in flat]
    assert batch.column("policy_version", "token").tolist() == [token.version for token in flat]
    trained = [token.trainable and position > 0 for token, position in zip(flat, positions, strict=True)]
    assert batch.column("trainable", "token").tolist() == trained
    # Nothing is stored twice: the nodes hold exactly the appended tokens.
    assert batch.column("token", "node_token")[batch.column("node_token", "token")].tolist() == [t.token for t in flat]


class ForestMachine(RuleBasedStateMachine):
    """Any operations in any order."""

    @initialize()
    def begin(self) -> None:
        self.played = Played(iteration=3, seed=5)
        self.groups = 0

    def running(self) -> list[Path]:
        return [path for path in self.played.paths if path.status == "running"]

    def with_tokens(self) -> list[Path]:
        return [path for path in self.played.paths if path.tokens and path.status != "pruned"]

    @rule()
    def add_group(self) -> None:
        self.played.forest.add_group(self.groups, f"task {self.groups}")
        self.groups += 1

    @precondition(lambda self: self.groups > 0)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        group = data.draw(st.integers(0, self.groups - 1))
        used_members = {path.fork_path[0] for path in self.played.paths if path.group == group}
        member = data.draw(st.integers(0, 20).filter(lambda member: member not in used_members))
        path = self.played.start(group, member)
        if data.draw(st.booleans()):
            self.played.append(
                path, [Token(token, "prompt") for token in data.draw(st.lists(tokens, min_size=1, max_size=4))]
            )

    @precondition(lambda self: self.running())
    @rule(data=st.data(), number=st.integers(1, 6), version=st.integers(0, 3))
    def act(self, data: st.DataObject, number: int, version: int) -> None:
        row = st.tuples(tokens, logprobs, st.booleans())
        rows = data.draw(st.lists(row, min_size=number, max_size=number))
        action = [Token(token, "action", logprob, version, trained) for token, logprob, trained in rows]
        self.played.append(data.draw(st.sampled_from(self.running())), action)

    @precondition(lambda self: self.running())
    @rule(data=st.data(), kind=st.sampled_from(["prompt", "observation", "injected"]))
    def observe(self, data: st.DataObject, kind: str) -> None:
        observation = [Token(token, kind) for token in data.draw(st.lists(tokens, min_size=1, max_size=3))]
        self.played.append(data.draw(st.sampled_from(self.running())), observation)

    @precondition(lambda self: any(path.open_since is not None for path in self.running()))
    @rule(data=st.data(), reward=st.none() | st.integers(-3, 3))
    def step(self, data: st.DataObject, reward: float | None) -> None:
        choices = [path for path in self.running() if path.open_since is not None]
        self.played.step(data.draw(st.sampled_from(choices)), reward)

    @precondition(lambda self: self.with_tokens())
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(self.with_tokens()))
        self.played.fork(path, data.draw(st.integers(0, len(path.tokens))))

    @precondition(lambda self: any(path.steps or path.open_since is not None for path in self.running()))
    @rule(
        data=st.data(),
        reward=st.none() | st.integers(-3, 3),
        status=st.sampled_from(["finished", "truncated", "failed"]),
    )
    def finish(self, data: st.DataObject, reward: float | None, status: str) -> None:
        choices = [path for path in self.running() if path.steps or path.open_since is not None]
        self.played.finish(data.draw(st.sampled_from(choices)), reward, status)

    @precondition(lambda self: self.played.paths)
    @rule(data=st.data())
    def prune(self, data: st.DataObject) -> None:
        self.played.prune(data.draw(st.sampled_from(self.played.paths)))

    @invariant()
    def paths_are_the_lists(self) -> None:
        for path in getattr(self, "played", Played()).paths:
            assert self.played.forest.tokens(path.handle).tolist() == [token.token for token in path.tokens]

    def teardown(self) -> None:
        if hasattr(self, "played"):
            check_against_lists(*self.played.freeze())


ForestMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGrown = ForestMachine.TestCase

turns = st.tuples(st.sampled_from(["act", "act", "observe", "pay", "fork", "prune"]), st.integers(0, 1000))
scripts = st.lists(st.lists(st.lists(turns, max_size=8), min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=100, deadline=None)
@given(scripts, st.integers(0, 2**32 - 1))
def test_no_interleaving_matters(scripts: list, seed: int) -> None:
    one_by_one, paths = play(scripts, lambda _: 0)
    check_against_lists(one_by_one, paths)
    rng = np.random.default_rng(seed)
    for pick in (lambda count: count - 1, lambda count: int(rng.integers(count))):
        assert same(one_by_one, play(scripts, pick)[0])


def test_threads_that_append_at_once_give_the_batch_of_one_thread() -> None:
    def roll_out(forest: Forest, group: int, member: int) -> None:
        rng = np.random.default_rng([group, member])
        trajectory = forest.start(group, member)
        forest.append(trajectory, [group, group, 7], kind="prompt")
        for turn in range(60):
            count = int(rng.integers(1, 9))
            forest.append(trajectory, rng.integers(0, 99, count), kind="action", logprobs=-rng.random(count))
            forest.step(trajectory, reward=float(turn))
            if turn % 20 == 10:
                branch = forest.fork(trajectory)
                forest.append(branch, [1, 2], kind="action", logprobs=[-1, -1])
                forest.finish(branch, reward=0.0)
            forest.append(trajectory, rng.integers(0, 99, 3), kind="observation")
            assert forest.tokens(trajectory)[:3].tolist() == [group, group, 7]
        forest.finish(trajectory, reward=float(rng.random()))

    def grown(threads: int) -> Batch:
        forest = Forest(seed=1)
        for group in range(4):
            forest.add_group(group, f"task {group}")
        places = [(group, member) for group in range(4) for member in range(4)]
        ready = threading.Barrier(threads)
        failures: list[BaseException] = []

        def work(mine: list[tuple[int, int]]) -> None:
            ready.wait()
            try:
                for group, member in mine:
                    roll_out(forest, group, member)
            except BaseException as error:  # noqa: BLE001, a thread's failure must reach the test
                failures.append(error)

        workers = [threading.Thread(target=work, args=(places[index::threads],)) for index in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not failures
        return forest.freeze()

    assert same(grown(1), grown(8))


def test_a_seed_belongs_to_a_place_not_to_a_time() -> None:
    def seeds(order: list[int], *, seed: int = 4, iteration: int = 2) -> dict[int, list[int]]:
        forest = Forest(iteration=iteration, seed=seed)
        forest.add_group(0, "task")
        segment_seeds = {}
        for member in order:
            trajectory = forest.start(0, member)
            forest.append(trajectory, [1], kind="prompt")
            segment_seeds[member] = [forest.segment_seed(trajectory)]
            forest.append(trajectory, [2], kind="action", logprobs=[-1.0])
            forest.step(trajectory)
            segment_seeds[member].append(forest.segment_seed(trajectory))
            segment_seeds[member].append(forest.segment_seed(forest.fork(trajectory)))
        return segment_seeds

    assert seeds([0, 1, 2]) == seeds([2, 0, 1])
    runs = (seeds([0, 1]), seeds([0, 1], seed=5), seeds([0, 1], iteration=3))
    everything = [seed for segment_seeds in runs for of_member in segment_seeds.values() for seed in of_member]
    assert len(set(everything)) == len(everything) == 18
    assert all(0 <= seed < 2**63 for seed in everything)


def test_groups_freeze_one_by_one() -> None:
    played = Played()
    rng = np.random.default_rng(0)
    for group in range(3):
        played.forest.add_group(group, f"task {group}")
    for group in (2, 0):
        path = played.start(group, 0)
        played.append(path, context_of(rng, "prompt", 2))
        played.append(path, action_of(rng, 2))
        if group == 2:
            played.finish(path, 1.0)
    batch = played.forest.freeze()
    assert pl.DataFrame(batch.trajectories)["task_id"].to_list() == ["task 2"]
    assert len(played.forest) == 2, "one runs, one has not begun"
    played.forest.abort()
    assert pl.DataFrame(played.forest.freeze().trajectories)["task_id"].to_list() == ["task 0"]
    assert played.forest.tokens(played.start(1, 0).handle).tolist() == []


@pytest.mark.parametrize("moment", ["before its prompt", "after its prompt"])
def test_an_aborted_forest_freezes_every_trajectory_with_a_prompt(moment: str) -> None:
    forest = Forest()
    forest.add_group(0, "task")
    finished = forest.start(0, 0)
    forest.append(finished, [1], kind="prompt")
    forest.append(finished, [2], kind="action", logprobs=[-1.0])
    forest.finish(finished, reward=1.0)
    aborted = forest.start(0, 1)
    if moment == "after its prompt":
        forest.append(aborted, [1], kind="prompt")
    forest.abort()
    statuses = pl.DataFrame(forest.freeze().trajectories)["status"].to_list()
    assert statuses == ([0] if moment == "before its prompt" else [0, 2])


def test_a_long_chain_is_frozen_adopted_and_extended() -> None:
    nodes = 200_000
    forest = Forest()
    forest.add_group(0, "task")
    trunk = forest.start(0, 0)
    kinds = np.resize(np.array([2, 1], np.uint8), nodes)  # an observation, an action, and so on
    tokens = np.arange(nodes, dtype=np.int32)
    forest.append_many(np.full(nodes, trunk), (tokens, np.arange(nodes + 1, dtype=np.int64)), kind=kinds)
    branches = forest.fork(trunk, count=3)
    for trajectory in (trunk, *branches):
        forest.finish(trajectory, reward=1.0)
    batch = forest.freeze()
    assert (len(batch.nodes), len(batch.steps)) == (nodes, 4 * nodes // 2)
    assert batch.column("token", "token").tolist() == np.tile(tokens[1::2], 4).tolist()
    later = Forest(iteration=1)
    later.add_group(0, "task")
    resumed = later.fork(later.adopt(0, batch, 3))
    later.append(resumed, [7], kind="action", logprobs=[-0.5])
    later.finish(resumed, reward=1.0)
    again = later.freeze()
    assert again.column("token", "token").tolist() == [*tokens[1::2].tolist(), 7]
