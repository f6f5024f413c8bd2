"""Vision-Zero and MARFT: games of several agents, with credit computed by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from riddles import check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.component import IterationRecord
from agentrl_core.engine import Request
from agentrl_core.env import ExtraColumn, StepResult, Task

PLAYERS = ("spy", "first", "second", "third")


class SpyGame:
    """All give a clue; then the civilians vote."""

    def __init__(self) -> None:
        self.moves: list[dict[str, str]] = []

    @property
    def observations(self) -> Mapping[str, str]:
        return {name: f"you are {name}, give a clue" for name in PLAYERS}

    def turn_of(self) -> tuple[str, ...]:
        return (PLAYERS, PLAYERS[1:], ())[len(self.moves)]

    def step(self, actions: Mapping[str, str]) -> dict[str, StepResult]:
        self.moves.append(dict(actions))
        if len(self.moves) == 1:
            return {name: StepResult("vote", facts={"vote": 0.0}) for name in PLAYERS}
        votes = {name: sum(action == name for action in actions.values()) for name in PLAYERS}
        paid = {
            name: 1.0 if action == "spy" else -1.0 if action in PLAYERS else -0.5 for name, action in actions.items()
        }
        return {
            name: StepResult(
                reward=paid.get(name),
                terminated=True,
                success=paid.get(name) == 1.0,
                facts={"vote": 1.0, "suspected": float(votes[name]), "spy": float(name == "spy")},
            )
            for name in PLAYERS
        }

    def state_key(self) -> bytes:
        return repr(self.moves).encode()


class SpyWorld:
    """Games."""

    runs = "inline"
    facts = {"vote": ExtraColumn("step"), "suspected": ExtraColumn("trajectory"), "spy": ExtraColumn("trajectory")}  # noqa: RUF012

    def tasks(self, count: int, *, split: str = "train", start: int = 0) -> list[Task]:
        return [Task(f"{split} {number}", "?", "spies", None) for number in range(start, start + count)]

    def reset(self, task: Task, seed: int) -> SpyGame:
        del task, seed
        return SpyGame()


def voting(context: str, request: Request) -> str:
    """Return votes: first votes for the spy, second for first, third abstains."""
    del request
    if "<|im_end|>" not in context.rpartition("give a clue")[2].replace("<|im_end|>", "", 1):
        return "a clue"
    return next(
        answer
        for name, answer in (("first", "spy"), ("second", "first"), ("third", "hm"))
        if f"you are {name}" in context
    )


def test_votes_and_clues_are_learned_by_turns() -> None:
    recipe = recipes.VISION_ZERO
    run = solve(recipe, voting, world=SpyWorld(), group_size=1)
    batch = recipe.credit(run.batch)
    agents = batch.keys("agent", "step").tolist()
    assert len(agents) == 4 + 3
    assert batch.column("suspected", "draw").tolist() == [1, 1, 0, 0]
    # Votes: first 1, second -1, third -0.5: mean -1/6, s^2 = (49 + 25 + 4)/36 / 3 = 26/36.
    scale = np.sqrt(26 / 36) + 1e-8
    keep = batch.column("keep", "step") != 0
    assert keep.tolist() == [False, False, True, False, True, False, True]
    np.testing.assert_allclose(
        batch.column("advantage", "step")[keep], [7 / 6 / scale, -5 / 6 / scale, -1 / 3 / scale], rtol=1e-5
    )
    # Clues are trained after votes were trained long enough. Votes for the civilians 1, 0, 0, mean 1/3; for the spy 1.
    # Spy: -0.1 (1 - 1/3) = -1/15. Civilians: 0.1/3 * 2/3 = 1/45, less 0.1 (v - 1/3): 1/45 - 1/15 and 1/45 + 1/30 twice.
    states: Mapping[str, Any] = {}
    phases = []

    def iterate(count: int, right: float, unsure: float = 0.0) -> None:
        nonlocal states
        for _ in range(count):
            phases.append(recipe.at(1, states).weight.votes)
            record = IterationRecord.of(batch, {"right_votes": right, "unsure_votes": unsure})
            states = recipe.next_states(states, record)

    iterate(20, 0.9)
    now = recipe.at(20, states)
    credited = now.credit(solve(now, voting, world=SpyWorld(), group_size=1).batch)
    scores = [-1 / 15, 1 / 45 - 1 / 15, 1 / 45 + 1 / 30, 1 / 45 + 1 / 30]
    np.testing.assert_allclose(credited.column("score", "draw"), scores, rtol=1e-5)
    assert sum(scores) == pytest.approx(0.0), "a game's rewards add up to nothing"
    # The baseline of a role moves before it is subtracted: by 0.05 of its mean, which is 1/45 for the civilians.
    expected = [0.95 * scores[0], *(score - 0.05 / 45 for score in scores[1:])]
    np.testing.assert_allclose(credited.column("advantage", "draw"), expected, rtol=1e-4)
    assert (credited.column("keep", "step") != 0).tolist() == [True, True, False, True, False, True, False]
    # The average is 0.9 (1 - 0.95^20) = 0.577 then, an error above 0.4: back to votes after at least 5 iterations.
    # Too many of the later votes are uncertain, until 20 iterations are over.
    iterate(5, 0.5)
    iterate(20, 1.0, unsure=0.6)
    iterate(1, 1.0)
    assert phases == [True] * 20 + [False] * 5 + [True] * 20 + [False]


class Relay:
    """Two agents that act one after the other, twice; each is paid for its own actions."""

    def __init__(self) -> None:
        self.moves: list[str] = []

    @property
    def observations(self) -> Mapping[str, str]:
        return {"first": "begin", "second": "wait"}

    def turn_of(self) -> tuple[str, ...]:
        return () if len(self.moves) == 4 else (("first", "second")[len(self.moves) % 2],)

    def step(self, actions: Mapping[str, str]) -> dict[str, StepResult]:
        [(name, action)] = actions.items()
        self.moves.append(action)
        other = "second" if name == "first" else "first"
        over = len(self.moves) == 4
        reward = float(len(self.moves) if action == "a" else -1)
        return {
            name: StepResult(None if over else "go on", reward=reward, terminated=over, success=over),
            other: StepResult(None if over else action, terminated=over, success=over),
        }

    def state_key(self) -> bytes:
        return repr(self.moves).encode()


class RelayWorld(SpyWorld):
    """Relays."""

    facts = {}  # type: ignore[assignment]  # noqa: RUF012

    def reset(self, task: Task, seed: int) -> Any:
        del task, seed
        return Relay()


def test_marft_lets_credit_flow_from_agent_to_agent() -> None:
    recipe = recipes.MARFT
    run = solve(recipe, lambda *_: "a", world=RelayWorld(), group_size=1)
    steps = len(run.batch.column("reward", "step"))
    values = np.array([0.5, 0.25, 0.0, 1.0])
    by_agent = run.batch.keys("agent", "step").argsort(kind="stable")
    assert steps == 4
    # The chain is first, second, first, second, paid 1, 2, 3, 4; values along it 0.5, 0.25, 0, 1.
    order = np.empty(4, int)
    order[by_agent] = [0, 2, 1, 3]
    batch = recipe.credit(run.batch.with_columns("step", value=values[order]))
    expected, after, later = np.empty(4), 0.0, 0.0
    for place in reversed(range(4)):
        delta = place + 1 + 0.99 * later - values[place]
        after = delta + 0.99 * 0.95 * after
        expected[place], later = after, values[place]
    white = (expected - expected.mean()) / (expected.std() + 1e-8)
    np.testing.assert_allclose(batch.column("advantage", "step"), white[order], rtol=1e-5)


@pytest.mark.parametrize("name", ["vision_zero", "marft"])
def test_each_recipe_resumes_and_takes_optimizer_steps(name: str) -> None:
    recipe = recipes.get(name)
    world: Any = SpyWorld() if name == "vision_zero" else RelayWorld()

    def speak(context: str, request: Request) -> str:
        if name == "marft":
            return "ab"[request.seed % 2]
        assert "you are" in context
        return (*PLAYERS, "hm")[request.seed % 5]

    assert check_resumes(recipe, speak, world=world) >= 1
    batch = solve(recipe, speak, world=world, tasks=2).batch
    if name == "marft":
        batch = batch.with_columns("step", value=np.zeros(len(batch.column("reward", "step"))))
    assert step(recipe.replace(loss=recipe.losses()[0].loss), batch) >= 1
