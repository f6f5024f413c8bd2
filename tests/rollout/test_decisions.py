"""The log of a search is enough to do the search again."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from agentrl_core import Batch, Forest, rollout
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.env.base import TOOL_RESULT, Outcome, Task
from agentrl_core.rollout.planner import Frontier, Planner
from agentrl_core.rollout.turns import roll_out

START, FORK = 0, 1


class Numbers:
    """An engine that says what its seeds say, and a chat of numbers."""

    policy_version, vocabulary_size, entropy_estimator = 3, 50, "exact"
    chat = SimpleNamespace(
        stop_token_ids=(49,),
        end_of_turn=49,
        prompt=lambda text: np.array([len(text), 1], np.int32),
        observation=lambda text: np.array([int(text) % 40], np.int32),
        decode=lambda tokens: " ".join(map(str, tokens.tolist())),
    )

    async def generate(self, request: Request) -> Segment:
        rng = np.random.default_rng(request.seed)
        tokens = rng.integers(2, 49, int(rng.integers(1, 5))).astype(np.int32)
        logprobs, entropies = -rng.random(len(tokens)), 3 * rng.random(len(tokens))
        numbers = (logprobs.astype(np.float32), entropies.astype(np.float32))
        return Segment(tokens, *numbers, "stop", self.policy_version, request.seed)


class Sums:
    """An episode that ends when its numbers add up to enough."""

    observation = "0"

    def __init__(self) -> None:
        self.sum = 0

    def step(self, action: str) -> Outcome:
        self.sum += sum(map(int, action.split()))
        if self.sum > 250:
            return Outcome(None, 1.0, True, False, 0, self.sum % 2 == 0, {"sum": self.sum})
        return Outcome(str(self.sum), None, False, False, TOOL_RESULT, None, None)

    def state_key(self) -> bytes:
        return str(self.sum).encode()


WORLD = SimpleNamespace(reset=lambda task, seed: Sums())  # noqa: ARG005
TASKS = [Task(f"task {number}", "?", "sums", None) for number in range(3)]


def searched(planner: Planner | Replay) -> Batch:
    forest = Forest(iteration=2, seed=5)
    sampling = Sampling(max_tokens=8)
    roll_out(forest, Numbers(), WORLD, planner, TASKS, group_size=2, sampling=sampling, context_tokens=200)
    return forest.freeze()


class Replay:
    """Decides what a table of decisions says; knows trajectories by the order in which it made them."""

    fork_at, random_columns, needs_tool_results = "segment_start", 0, False

    def __init__(self, decisions: pl.DataFrame, initial: int) -> None:
        self.decisions, self.initial, self.round = decisions, initial, 0
        self.ids: dict[int, int] = {}
        self.made = self.starts(0)

    def segment_entropy(self, entropies: np.ndarray, offsets: np.ndarray, vocabulary: int) -> np.ndarray:
        del entropies, vocabulary
        return np.full(len(offsets) - 1, np.nan)

    def of(self, operation: int, number: int) -> pl.DataFrame:
        return self.decisions.filter(pl.col("operation") == operation, pl.col("round") == number)

    def starts(self, number: int) -> list[int]:
        return self.of(START, number).sort("group_id", "ordinal")["trajectory_id"].to_list()

    def roots(self, group_size: int) -> int:
        del group_size
        return self.initial

    def plan(self, frontier: Frontier) -> np.ndarray:
        handles = frontier.trajectory.tolist()
        self.ids.update(zip([handle for handle in handles if handle not in self.ids], self.made, strict=True))
        forks = self.of(FORK, self.round)
        children = [forks.filter(pl.col("trajectory_id") == self.ids[handle]).sort("ordinal") for handle in handles]
        self.round += 1
        self.made = [child for rows in children for child in rows["result_trajectory_id"]] + self.starts(self.round)
        return np.array([len(rows) for rows in children], np.uint32)

    def top_up(self, existing: np.ndarray, active: np.ndarray) -> np.ndarray:
        del active
        groups = self.of(START, self.round)["group_id"].to_list()
        return np.bincount(groups, minlength=len(existing)).astype(np.uint32)


@pytest.mark.parametrize("seed_of_search", range(3))
def test_a_search_is_replayed_from_its_decisions(seed_of_search: int) -> None:
    planner = rollout.EntropyBranching(budget=7, initial=2, beam=3, entropy_weight=0.2 + 0.3 * seed_of_search)
    batch = searched(planner)
    decisions = pl.DataFrame(batch.decisions)
    assert len(decisions.filter(pl.col("operation") == FORK)) > 3
    assert len(decisions) == len(batch.trajectories), "each trajectory comes from one decision"
    forks = decisions.filter(pl.col("operation") == FORK)
    rows = pl.DataFrame(batch.trajectories).filter(pl.col("branch_node").is_not_null())
    assert dict(zip(forks["result_trajectory_id"], forks["node_id"], strict=True)) == dict(
        zip(rows["trajectory_id"], rows["branch_node"], strict=True)
    )
    again = searched(Replay(decisions, initial=2))
    for name in ("nodes", "steps", "trajectories", "draws"):
        one, other = (pl.DataFrame(getattr(found, name)).drop("created_us", strict=False) for found in (batch, again))
        assert one.equals(other, null_equal=True), name
    of_replay = pl.DataFrame(again.decisions)
    assert of_replay.drop("score").equals(decisions.drop("score"), null_equal=True)
