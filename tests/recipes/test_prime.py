"""PRIME: leave-one-out rewards of tokens, by hand and compared with a loop."""

from __future__ import annotations

import numpy as np
import pytest
from compared import close, column
from rollouts import plain, ragged, small

from agentrl_core.advantage import Discounted
from agentrl_core.component import BatchComponent
from agentrl_core.recipes import PRIME
from agentrl_core.recipes.prime import LeaveOneOutProcess

PAPER, PUBLIC_CODE = PRIME.advantage[0], LeaveOneOutProcess()


def test_by_hand() -> None:
    batch = small([(0, [3]), (0, [2])], draw_score=[1.0, 0.0], token_process_reward=[0.1, 0.2, 0.3, -0.1, 0.1])
    credited = Discounted(column="advantage", level="token")(PUBLIC_CODE(batch))
    close(column(credited, level="token"), [0.6, 0.6, 0.4, -0.4, 0.0], 1e-6)
    credited = Discounted(column="advantage", level="token")(PAPER(batch))
    close(column(credited, level="token"), [0.6, 0.5, 0.3, -0.4, -0.1], 1e-6)
    doubled = Discounted(column="advantage", level="token")(LeaveOneOutProcess(coefficient=2.0)(batch))
    close(column(doubled, level="token"), [1.2, 1.2, 0.8, -0.8, 0.0], 1e-6)


@pytest.mark.parametrize("component", [PAPER, PUBLIC_CODE], ids=["paper", "public_code"])
@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(seed: int, component: BatchComponent) -> None:
    batch = ragged(seed)
    rewards = np.random.default_rng(seed).normal(size=len(batch.column("token", "token")))
    draws = plain(batch)
    expected = np.zeros(len(rewards))
    for draw in draws:
        members = [other for other in draws if other.group == draw.group and other.valid]
        means = {
            other.row: np.mean([rewards[token.row] for token in other.tokens if token.trained]) for other in members
        }
        n, total = len(means), sum(means.values())
        for token in draw.tokens:
            if draw.valid and token.trained and n > 1:
                if component is PUBLIC_CODE:
                    expected[token.row] = n / (n - 1) * rewards[token.row] - total / (n - 1)
                else:
                    expected[token.row] = rewards[token.row] - (total - means[draw.row]) / (n - 1)
    rewarded = component(batch.with_columns("token", process_reward=rewards))
    close(column(rewarded, level="token"), expected)
