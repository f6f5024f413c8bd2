"""The streams of packs: products of weight and advantage, summed over the branches that share a token, bit for bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from updates import grow

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.update.optimizer_step import Update

RECIPE = recipes.GRPO.replace(loss=loss.Policy(kl=loss.KL(0.1), entropy=0.05, aggregate="sequence_mean"))
SUMMED = ("advantage_positive", "advantage_negative", "weight_kl", "weight_entropy")
OPTIONAL = ("weight", "kl_weight", "keep", "advantage_positive", "advantage_negative")


def with_random_columns(seed: int, optional: set[str]) -> Batch:
    """Return a batch with branches; of tokens that are stored once, some of the same advantage and some of others."""
    rng = np.random.default_rng(seed)
    batch = grow(seed % 4)
    count = len(batch.column("token", "token"))
    columns = {
        "advantage": rng.normal(size=count),
        "reference_logprob": np.full(count, -1.0),
        "weight": rng.choice([0.0, 0.5, 1.5, -1.0], count),
        "kl_weight": rng.uniform(0, 2, count),
        "keep": rng.uniform(size=count) < 0.8,
        "advantage_positive": rng.normal(size=count),
        "advantage_negative": rng.normal(size=count),
    }
    new_columns = {name: values.astype(np.float32) for name, values in columns.items() if name not in OPTIONAL}
    new_columns |= {name: columns[name].astype(np.float32) for name in optional}
    return batch.with_columns("token", **new_columns)


def by_definition(batch: Batch, update: Update) -> dict[str, np.ndarray]:
    """Return the four columns of products, in float64, of all tokens."""

    def read(name: str, default: float) -> np.ndarray:
        if not batch.has(name, "token"):
            return np.full(len(batch.column("token", "token")), default)
        return np.asarray(batch.column(name, "token"), np.float32).astype(np.float64)

    valid = np.zeros(batch.num_draws, np.bool_)
    valid[update.draws] = True
    weight = batch.token_weights(update.draws, denominator="sequence_mean", valid=valid, keep=read("keep", 1.0) != 0)
    advantage, factor = read("advantage", 0.0), weight * read("weight", 1.0)
    gains, losses = np.maximum(advantage, 0), np.minimum(advantage, 0)
    if batch.has("advantage_positive", "token"):
        gains = read("advantage_positive", 0.0)
    if batch.has("advantage_negative", "token"):
        losses = read("advantage_negative", 0.0)
    gains, losses = gains * factor, losses * factor
    return {
        "advantage_positive": np.maximum(gains, 0) + np.maximum(losses, 0),
        "advantage_negative": np.minimum(gains, 0) + np.minimum(losses, 0),
        "weight_kl": weight * read("kl_weight", 1.0),
        "weight_entropy": weight,
    }


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1000),
    optional=st.sets(st.sampled_from(OPTIONAL)),
    layout=st.sampled_from(["sequence", "tree"]),
    minibatches=st.integers(1, 2),
)
def test_streams_are_their_definition(seed: int, optional: set[str], layout: str, minibatches: int) -> None:
    batch = with_random_columns(seed, optional)
    pairs = shared = 0
    for update in RECIPE.replace(minibatches=minibatches).updates(batch, seed=seed):
        products = by_definition(batch, update)
        for pack in update.pack(max_tokens=120, layout=layout):
            offsets, tokens = pack.pair_offsets.tolist(), pack.pair_tokens.tolist()
            for name in SUMMED:
                expected = []
                for begin, end in itertools.pairwise(offsets):
                    total = 0.0
                    for token in tokens[begin:end]:
                        total += products[name][token]
                    expected.append(np.float32(total))
                np.testing.assert_array_equal(pack.streams[name].numpy(), np.array(expected, np.float32), err_msg=name)
            np.testing.assert_array_equal(
                pack.streams.old_logprob.numpy(), batch.column("behaviour_logprob", "token")[pack.token.numpy()]
            )
            pairs += len(offsets) - 1
            shared += sum(np.diff(offsets) > 1)
    assert pairs > 30
    assert not shared or layout == "tree"
    assert shared or layout == "sequence" or minibatches > 1


def test_three_branches_by_hand() -> None:
    """A token that three draws train, each at a weight of a third: gains of 2 and 1, and a loss of 3."""
    forest = Forest()
    forest.add_group(0, "task")
    trunk = forest.start(0, member=0)
    forest.append(trunk, [1, 2], kind="prompt")
    forest.append(trunk, [3], kind="action", logprobs=[-0.5])
    for place, trajectory in enumerate((trunk, forest.fork(trunk), forest.fork(trunk))):
        forest.append(trajectory, [4 + place], kind="observation")
        forest.append(trajectory, [9], kind="action", logprobs=[-0.1])
        forest.finish(trajectory, reward=1.0)
    advantage = [2.0, 0.0, 1.0, 0.0, -3.0, 0.0]  # each draw's shared token and one of its own
    policy = loss.Policy(aggregate="constant", constant=1.0)
    (update,) = recipes.GRPO.replace(loss=policy).updates(forest.freeze().with_columns("token", advantage=advantage))
    (pack,) = update.pack(max_tokens=100, layout="tree")
    assert np.diff(pack.pair_offsets).tolist() == [3, 1, 1, 1]
    assert pack.streams.advantage_positive.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert pack.streams.advantage_negative.tolist() == [-1.0, 0.0, 0.0, 0.0]
    assert pack.streams.weight_kl.tolist() == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3])


def test_a_plan_makes_streams_of_columns() -> None:
    batch = grow(0)
    plan = batch.plan(np.arange(batch.num_draws), 10_000)
    weights = np.ones(len(batch.column("token", "token")))
    column = np.arange(len(weights), dtype=np.float32)
    pack = plan.pack(0, same={"mine": column}, summed=["weight_kl"], weights=weights, credit={"kl_weight": column})
    np.testing.assert_array_equal(pack.streams["mine"], column[pack.token])
    np.testing.assert_array_equal(pack.streams["weight_kl"], column[pack.token])
    assert plan[0].streams == {}
    for options, message in [
        ({"summed": ["advantage"], "weights": weights}, 'summed has "advantage"; use advantage_positive'),
        ({"summed": ["advantage_positive"], "weights": weights}, 'column "advantage" is missing'),
        ({"summed": ["weight_kl"], "weights": weights[:3]}, "a pair has token 3, but a column has only 3 values"),
        ({"summed": ["weight_kl"]}, "but a column has only 0 values"),
        ({"summed": ["weight_kl"] * 2, "weights": weights}, "is requested twice"),
    ]:
        with pytest.raises(InvalidInputError, match=message):
            plan.pack(0, **options)
    with pytest.raises(IndexError, match="pack 1 does not exist; give an index below the 1 packs"):
        plan[1]
    assert plan[-1].token.tolist() == pack.token.tolist()
