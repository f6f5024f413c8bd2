"""AT-GRPO: candidates by hand, for one agent and for a match; trained tokens, budgets and a step."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from referee_game import GameWorld, NumberEngine
from riddles import RIGHT, Riddle, Riddles, check_resumes, solve, step
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.env import StepResult, Task
from agentrl_core.recipes.at_grpo import TurnCandidates


class Steps(Riddle):
    """Pays for each action the number of letters x in it."""

    def step(self, action: str) -> StepResult:
        outcome = super().step(action)
        return outcome if outcome.terminated else StepResult("go on", reward=float(action.count("x")))


class StepWorld(Riddles):
    def reset(self, task: Task, seed: int) -> Any:
        del seed
        return Steps(task)


def by_turn(context: str, request: engine.Request) -> str:
    """Return letters that depend on the candidate's seed."""
    del context
    return "x" * (request.seed % 5) + "y"


def test_each_turn_starts_from_the_best_candidate_of_the_previous_turn() -> None:
    run = solve(TurnCandidates(candidates=3, turns=3), by_turn, world=StepWorld(), group_size=1)
    assert run.num_requests == 9
    assert len(run.drawn) == 9
    turns = run.fact("turn")
    assert sorted(turns) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    of_turn = {
        turn: [row for row, row_turn in zip(run.drawn, turns, strict=True) if row_turn == turn] for turn in range(3)
    }
    best: list[str] = []
    for turn in range(3):
        rows = [(row, [action for action in row.actions if action]) for row in of_turn[turn]]
        assert all(actions[:-1] == best for _, actions in rows), "all begin behind the best of the turn before"
        assert all(row.trained.removesuffix("<|im_end|>") == actions[-1] for row, actions in rows), (
            "each trains its own"
        )
        best = max((actions for _, actions in rows), key=lambda actions: actions[-1].count("x"))
    # By hand: A = (R - mean) / std (ddof 1) + eps over the three of a turn; the history is the same for them.
    recipe = recipes.AT_GRPO.replace(rollout=TurnCandidates(candidates=3, turns=3))
    credited = recipe.credit(run.batch)
    advantages, scores = credited.column("advantage", "draw"), run.batch.column("score", "draw")
    for turn in range(3):
        rows = np.array(turns) == turn
        expected = (scores[rows] - scores[rows].mean()) / (scores[rows].std(ddof=1) + 1e-6)
        np.testing.assert_allclose(advantages[rows], expected, atol=1e-4)


def test_a_joint_move_is_a_candidate() -> None:
    recorder = RecordingEngine(NumberEngine())
    recipe = recipes.AT_GRPO.replace(rollout=TurnCandidates(agents=("one", "two", "referee"), candidates=2, turns=4))
    batch = arl.Collector(recorder, GameWorld(), recipe, task_pool=4)(tasks=1, group_size=1)
    assert check_sampled(batch, recorder) > 0
    turns, agents = batch.column("turn", "draw").tolist(), batch.keys("agent", "draw").tolist()
    # Both players have turns 0 and 2, the referee 1 and 3; each has two candidates.
    assert sorted(turns) == [0] * 4 + [1] * 2 + [2] * 4 + [3] * 2
    assert len({(turn, agent) for turn, agent in zip(turns, agents, strict=True)}) == 6
    # A last move ends the match for all: agents that did not move then are not drawn.
    assert pl.DataFrame(batch.trajectories)["status"].to_list().count(0) == 12


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 1000))
def test_budgets(candidates: int, turns: int, size: int, seed: int) -> None:
    def speak(context: str, request: engine.Request) -> str:
        return RIGHT if request.seed % 7 == 0 else by_turn(context, request)

    program = TurnCandidates(candidates=candidates, turns=turns)
    run = solve(program, speak, world=StepWorld(), group_size=size, seed=seed)
    assert run.num_requests <= program.final_group_size(size)
    assert len(run.drawn) <= program.final_group_size(size)
    groups = list(zip(run.fact("instance"), run.fact("turn"), strict=True))
    assert all(groups.count(each) == candidates for each in groups)


def test_the_recipe_resumes_and_takes_an_optimizer_step() -> None:
    recipe = recipes.AT_GRPO.replace(rollout=TurnCandidates(candidates=2, turns=2))
    assert check_resumes(recipe, by_turn, world=StepWorld(), group_size=2) >= 2
    assert step(recipe, solve(recipe, by_turn, world=StepWorld(), group_size=2).batch) >= 1
    with pytest.raises(arl.exceptions.RecipeError, match="candidates=1"):
        TurnCandidates(candidates=1)
