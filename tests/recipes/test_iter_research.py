"""IterResearch: contexts and rewards of rounds, by hand."""

from __future__ import annotations

import numpy as np
from riddles import RIGHT, TOKENIZER, WRONG, check_resumes, solve, step

from agentrl_core import recipes
from agentrl_core.engine import Request


def researching(context: str, request: Request) -> str:
    """Return the actions: three rounds of reports, each based on the last one; then an answer by the seed."""
    for report, following in (
        ("third", RIGHT if request.seed % 2 else WRONG),
        ("second", "third"),
        ("first", "second"),
    ):
        if report in context:
            return following
    return "first"


def test_the_context_of_a_round_contains_the_previous_round() -> None:
    run = solve(recipes.ITER_RESEARCH, researching, group_size=4)
    contexts = run.batch.contexts()
    decode = TOKENIZER.decode
    texts = [decode(contexts.tokens[a:b]) for a, b in zip(contexts.offsets, contexts.offsets[1:], strict=False)]
    assert all("riddle?" in text for text in texts)
    # The first two rounds lie in one context, each later one has its own.
    assert len(texts) == 4 * 3
    for text in texts:
        rounds = [name for name in ("first", "second", "third", "<answer>") if name in text]
        assert rounds in (["first", "second"], ["second", "third"], ["third", "<answer>"])
    # r = 0.995^(3 - t) R for the four rounds of each, compared over the sixteen.
    scores = run.batch.column("score", "draw")
    worth = np.array([score * 0.995 ** (3 - number) for score in scores for number in range(4)])
    expected = (worth - worth.mean()) / (worth.std(ddof=1) + 1e-6)
    credited = recipes.ITER_RESEARCH.credit(run.batch)
    np.testing.assert_allclose(credited.column("advantage", "step"), expected, atol=1e-4)


def test_the_recipe_resumes_and_takes_an_optimizer_step() -> None:
    assert check_resumes(recipes.ITER_RESEARCH, researching) >= 2
    assert step(recipes.ITER_RESEARCH, solve(recipes.ITER_RESEARCH, researching, group_size=8).batch) >= 1
