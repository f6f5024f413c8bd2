"""One-token rollouts: a draw for each different candidate, with how often it was sampled."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from riddles import Riddles, check_resumes, solve

from agentrl_core import recipes
from agentrl_core.engine import Request
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.recipes.otr import OneToken

END = "<|im_end|>"


def letter(context: str, request: Request) -> str:
    """Return a letter of three by the request's seed; three of five times the right one of the demonstration `abc`."""
    completion = context.rsplit("assistant\n", 1)[1]
    right = ("abc" + END)[len(completion)] if len(completion) < 3 else "!"
    return (right + right + right + "xy")[request.seed % 5]


def test_a_draw_for_each_candidate_that_is_another_token() -> None:
    run = solve(OneToken(candidates=12), letter, world=Riddles(("abc",)))
    draws = {(row.text.rsplit("assistant\n", 1)[1], row.trained) for row in run.drawn}
    assert len(draws) == len(run.drawn), "no two draws are the same"
    prefixes = Counter(text[:-1] for text, _ in draws)
    assert set(prefixes) == {"", "a", "ab", "abc"}, "one place for each token of the demonstration, its end included"
    assert all(text.endswith(trained) and len(trained) == 1 for text, trained in draws)
    counts = dict(zip([row.text.rsplit("assistant\n", 1)[1] for row in run.drawn], run.fact("count"), strict=True))
    for place in prefixes:
        assert sum(count for text, count in counts.items() if text[:-1] == place) == 12
    assert max(counts.values()) > 3
    right = run.batch.column("success", "draw").astype(bool)
    assert {text for text, solved in zip(counts, right, strict=True) if solved} == {"a", "ab", "abc"}
    assert run.num_requests == 4 * 12


def test_the_loss_is_that_of_all_candidates() -> None:
    """Counts as weights give the mean over all samples: each candidate in a row of its own gives the same."""
    program = OneToken(candidates=12)
    run = solve(recipes.OTR.replace(rollout=program), letter, world=Riddles(("abc",)))
    credited = recipes.OTR.credit(run.batch)
    weights = np.asarray(credited.column("weight", "draw"), np.float64)
    counts, rewards = np.array(run.fact("count")), np.asarray(credited.column("advantage", "draw"), np.float64)
    (update,) = recipes.OTR.updates(credited)
    denominators = credited.token_weights(update.draws)[credited.column("trainable", "token") != 0]
    one_by_one = np.repeat(rewards, counts.astype(int)).sum() / 48
    assert (denominators * weights * rewards).sum() == pytest.approx(one_by_one)
    np.testing.assert_allclose(denominators * weights, counts / 48, rtol=1e-6)
    assert np.asarray(credited.column("inverse_temperature", "token")).tolist() == [1.0] * len(
        credited.column("token", "token")
    )
    assert set(rewards.round(6).tolist()) == {1.0, -0.1}


def test_the_program_resumes_after_interrupts() -> None:
    assert check_resumes(OneToken(candidates=2), letter, every=5, tasks=1, world=Riddles(("ab",))) > 0


def test_a_task_without_a_demonstration() -> None:
    with pytest.raises(InvalidInputError, match="has no demonstration; give its actions as Task"):
        solve(OneToken(candidates=2), letter, world=Riddles(()))
