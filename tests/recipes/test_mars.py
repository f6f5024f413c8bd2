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
    """Return one or two stones by the seed, sometimes an invalid move."""
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
    agents = {agent for _, agent in seats.values()}
    assert set(seats.values()) == {(tag, agent) for tag in ("nim", "misere") for agent in agents}
    assert len(agents) == 2
    returned = {name: np.cumsum(played[name][::-1])[::-1] for name in draws}
    # The return of a turn minus the mean over all turns of the same game and seat.
    means = {
        seat: np.mean(np.concatenate([returned[name] for name in draws if seats[name] == seat]))
        for seat in set(seats.values())
    }
    expected = np.concatenate([returned[name] - means[seats[name]] for name in draws])
    assert batch.column("trainable", "token").all()
    assert batch.column("advantage", "step") == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert len(set(np.round(expected, 3))) > 6


def test_the_recipe_resumes_and_takes_an_optimizer_step() -> None:
    assert check_resumes(recipes.MARS, takes, world=Nim(), tasks=4, group_size=1) >= 2
    batch = solve(recipes.MARS, takes, world=Nim(), tasks=4, group_size=1).batch
    assert step(recipes.MARS, batch) >= 1
