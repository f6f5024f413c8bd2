"""MARS: matches of two players in two games, the credit of each turn by hand, resume and an optimizer step."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from nim import Nim
from riddles import check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.engine import Request


def takes(context: str, request: Request) -> str:
    """One or two stones by the seed, sometimes nonsense."""
    del context
    return ("1", "2", "1", "2", "all of them")[request.seed % 5]


def test_each_turn_is_credited_against_its_seat_in_its_game() -> None:
    run = solve(recipes.MARS, takes, world=Nim(), tasks=6, group_size=1)
    batch = recipes.MARS.credit(run.batch)
    draws = pl.DataFrame(batch.draws)["trajectory_id"].to_list()
    rows = {row["trajectory_id"]: row for row in pl.DataFrame(batch.trajectories).iter_rows(named=True)}
    played = defaultdict(list)
    for row in pl.DataFrame(batch.steps).sort("trajectory_id", "step").iter_rows(named=True):
        played[row["trajectory_id"]].append(row["reward"] or 0.0)
    seats = {name: (rows[name]["facts"]["env_tag"], rows[name]["agent"]) for name in draws}
    seen = {agent for _, agent in seats.values()}
    assert set(seats.values()) == {(tag, agent) for tag in ("nim", "misere") for agent in seen}
    assert len(seen) == 2
    # r~ is the reward of a turn less the mean over all turns of the same game and seat.
    means = {
        seat: np.mean([paid for name in draws if seats[name] == seat for paid in played[name]])
        for seat in set(seats.values())
    }
    offsets, tokens = batch.offsets("step"), batch.offsets("token")
    expected: list[float] = []
    returned = {name: np.cumsum((np.array(played[name]) - means[seats[name]])[::-1])[::-1] for name in draws}
    # Each seat is centred over the distinct returns that it has in both games, and 0.
    distinct = {
        agent: {0.0, *np.concatenate([returned[name] for name in draws if seats[name][1] == agent]).round(9).tolist()}
        for agent in seen
    }
    for place, name in enumerate(draws):
        returns = returned[name] - np.mean(list(distinct[seats[name][1]]))
        for turn, number in enumerate(range(offsets[place], offsets[place + 1])):
            expected += [returns[turn]] * int(tokens[number + 1] - tokens[number])
    numbers = np.array(expected)
    trained = batch.column("trainable", "token").astype(bool)
    assert trained.all()
    # The variance of a whitened batch is the unbiased one.
    numbers = (numbers - numbers.mean()) / np.sqrt(numbers.var(ddof=1) + 1e-8)
    assert batch.column("advantage", "token") == pytest.approx(numbers, rel=1e-4, abs=1e-5)
    assert len(set(np.round(numbers, 3))) > 6


def test_it_resumes_and_comes_to_a_step() -> None:
    assert check_resumes(recipes.MARS, takes, world=Nim(), tasks=4, group_size=1) >= 2
    batch = solve(recipes.MARS, takes, world=Nim(), tasks=4, group_size=1).batch
    assert step(recipes.MARS, batch) >= 1
