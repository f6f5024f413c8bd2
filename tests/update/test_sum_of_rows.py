"""Each term of a sum of losses has the denominator of the rows it reads."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.component import Where
from agentrl_core.exceptions import RecipeError
from agentrl_core.model.pack import PackOutput

GENERATED, EXPERT = Where(origin="generated"), Where(origin="expert")


def batch_of(rollouts: list[int], experts: list[int], seed: int = 0) -> Batch:
    """Return rollouts and experts' draws of these lengths, which share their first token."""
    rng = np.random.default_rng(seed)
    forest = Forest()
    forest.add_group(0, "task")
    for member, length in enumerate((*rollouts, *experts)):
        expert = member >= len(rollouts)
        handle = forest.start(0, member, origin="expert" if expert else "generated")
        forest.append(handle, [1, 2], kind="prompt")
        tokens = [3, *rng.integers(10, 90, length - 1).tolist()]
        options = {} if expert else {"logprobs": [-1.0] * length}
        forest.append(handle, tokens, kind="action", **options)
        forest.finish(handle, reward=float(member % 3))
    return recipes.GRPO.credit(forest.freeze())


def log_probs(batch: Batch) -> torch.Tensor:
    """Return a log-prob of each token, equal for tokens that draws share."""
    values = torch.linspace(-3.0, -0.2, int(batch.offsets("token")[-1]), dtype=torch.float64)
    values[torch.from_numpy(batch.offsets("token")[:-1].astype(np.int64))] = -0.9
    return values.requires_grad_()


def value_of(
    of: loss.Loss, batch: Batch, layout: Literal["tree", "sequence"] = "sequence", max_tokens: int = 10**6
) -> tuple[float, np.ndarray]:
    """Return the loss of a batch and its gradient by the log-prob of each token, over all packs."""
    (update,) = recipes.GRPO.replace(loss=of).updates(batch)
    logprob = log_probs(batch)
    total = torch.zeros((), dtype=torch.float64)
    for pack in update.pack(max_tokens=max_tokens, layout=layout):
        total = total + update.loss(PackOutput(logprob[pack.token], torch.zeros(len(pack.token))), pack)
    (gradient,) = torch.autograd.grad(total, logprob)
    return float(total.detach()), gradient.numpy()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("second", [loss.Imitation("token_mean"), loss.Imitation(), loss.Imitation("constant", 1.0)])
def test_the_sum_is_that_of_both_losses_alone(seed: int, second: loss.Imitation) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_of(rng.integers(1, 6, 4).tolist(), rng.integers(1, 6, 1 + seed).tolist(), seed)
    both = loss.Sum(loss.Policy(), second, 0.25, 0.75, first_where=GENERATED, second_where=EXPERT)
    total, gradient = value_of(both, batch)
    expected, by_token = 0.0, np.zeros(len(gradient))
    for of, where, coefficient in ((loss.Policy(), GENERATED, 0.25), (second, EXPERT, 0.75)):
        (update,) = recipes.GRPO.replace(loss=loss.Train(of, where=where)).updates(batch)
        logprob = log_probs(batch)
        (pack,) = update.pack(max_tokens=10**6, layout="sequence")
        alone = update.loss(PackOutput(logprob[pack.token], torch.zeros(len(pack.token))), pack)
        expected += coefficient * float(alone.detach())
        by_token += coefficient * torch.autograd.grad(alone, logprob)[0].numpy()
    assert total == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(gradient, by_token, rtol=1e-5, atol=1e-8)
    for layout, most in (("sequence", 9), ("tree", 10**6), ("tree", 9)):
        assert value_of(both, batch, layout, most)[0] == pytest.approx(expected, rel=1e-5), (layout, most)


def test_more_rows_of_one_term_do_not_change_the_other() -> None:
    """By hand: two rollouts of two tokens; one expert of one token, then nine of them."""
    both = loss.Sum(loss.Policy(clip=None), loss.Imitation("token_mean"), first_where=GENERATED, second_where=EXPERT)
    few, many = batch_of([2, 2], [1]), batch_of([2, 2], [1] * 9)
    one, other = value_of(both, few)[1], value_of(both, many)[1]
    advantages = few.column("advantage", "token")[:4]
    ratio = np.exp(log_probs(few).detach().numpy()[:4] + 1.0)
    np.testing.assert_allclose(one[:4], -advantages * ratio / 4, rtol=1e-5)
    assert one[4] == pytest.approx(-1.0)
    ratio = np.exp(log_probs(many).detach().numpy()[:4] + 1.0)
    np.testing.assert_allclose(other[:4], -many.column("advantage", "token")[:4] * ratio / 4, rtol=1e-5)
    np.testing.assert_allclose(other[4:], np.full(9, -1 / 9), rtol=1e-5)


def test_a_term_without_rows_adds_nothing() -> None:
    both = loss.Sum(loss.Policy(), loss.Imitation("token_mean"), first_where=GENERATED, second_where=EXPERT)
    batch = batch_of([2, 3], [])
    assert value_of(both, batch)[0] == pytest.approx(value_of(loss.Policy(), batch)[0], rel=1e-6)


def test_metrics_are_of_each_term() -> None:
    both = loss.Sum(loss.Policy(), loss.Imitation("token_mean"), first_where=GENERATED, second_where=EXPERT)
    batch = batch_of([2, 2], [4])
    updates = recipes.GRPO.replace(loss=both).updates(batch)
    (update,) = updates
    (pack,) = update.pack(max_tokens=10**6, layout="sequence")
    logprob = torch.tensor([-1.0] * 4 + [-2.0] * 4, dtype=torch.float64)[pack.token]
    update.loss(PackOutput(logprob, torch.ones(len(logprob))), pack)
    metrics = updates.metrics
    assert (metrics["tokens"], metrics["tokens@first"], metrics["tokens@second"]) == (8, 4, 4)
    assert (metrics["ratio"], metrics["nll@second"], metrics["entropy@first"], metrics["entropy"]) == (
        1.0,
        2.0,
        1.0,
        1.0,
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"second": loss.Imitation()}, "give it the denominator of the first"),
        (
            {"first": loss.Sum(loss.Policy(), loss.Policy()), "first_where": EXPERT},
            "a term is a Sum, which takes no rows of its own",
        ),
        (
            {"first": loss.Sum(loss.Policy(), loss.Policy(), first_where=EXPERT)},
            "a sum with rows of its own is not a term of another sum",
        ),
    ],
)
def test_sums_that_are_not_possible_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        loss.Sum(**({"first": loss.Policy(), "second": loss.Policy()} | options))


def test_the_rows_of_a_sum_are_stored() -> None:
    recipe = recipes.DATA_MIND
    assert type(recipe).from_toml(recipe.to_toml()) == recipe
