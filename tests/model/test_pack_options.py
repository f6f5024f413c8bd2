"""Folding if branches differ, ranks, buffers, and the mapping of packs to tokens."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from branches import agree_on_branches
from systems import LOSSES
from updates import Rollouts, grow

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.model.buffers import PackBuffers
from agentrl_core.model.pack import Pack, PackOutput
from agentrl_core.operators.packing import balanced, tree_layout

POLICY = loss.Policy(kl=loss.KL(0.1))


def totals(packs: list[Pack]) -> dict[str, float]:
    names = ("advantage_positive", "advantage_negative", "weight_kl")
    return {name: sum(pack.streams[name].double().sum().item() for pack in packs) for name in names}


def test_a_token_whose_streams_differ_is_one_pair_for_each_branch() -> None:
    rollouts = Rollouts.random(POLICY, 0)
    agree_on_branches(rollouts)
    batch = rollouts.batch
    (update,) = recipes.GRPO.replace(loss=POLICY).updates(batch)
    (folded,) = update.pack(max_tokens=10**6, layout="tree")
    offsets = folded.pair_offsets.numpy()
    shared = np.flatnonzero(np.diff(offsets) > 1)
    assert len(shared) > 3
    # One branch of the first shared token read a different value, and one of the second has no value.
    tokens = [folded.pair_tokens[offsets[pair]].item() for pair in shared[:2]]
    reference = batch.column("reference_logprob", "token").copy()
    reference[tokens[0]] -= 1.0
    apart = batch.with_columns("token", reference_logprob=reference)
    (update,) = recipes.GRPO.replace(loss=POLICY).updates(apart)
    (pack,) = update.pack(max_tokens=10**6, layout="tree")
    assert len(pack.token) == len(folded.token) + np.diff(offsets)[shared[0]] - 1
    mine = np.flatnonzero(pack.node_token.numpy() == folded.node_token[shared[0]].item())
    assert len(set(pack.source_row[mine].tolist())) == 1
    assert totals([pack]) == pytest.approx(totals([folded]), abs=1e-6)


def test_sums_are_exact_and_in_float64() -> None:
    rollouts = Rollouts.random(POLICY, 1)
    agree_on_branches(rollouts)
    (update,) = recipes.GRPO.replace(loss=POLICY).updates(rollouts.batch)
    (single,) = update.pack(max_tokens=10**6)
    (tree,) = update.pack(max_tokens=10**6, layout="tree")
    place = {token: row for row, token in enumerate(single.token.tolist())}
    weight = rollouts.batch.token_weights(update.draws, valid=np.isfinite(rollouts.batch.column("score", "draw")))
    offsets = tree.pair_offsets.tolist()
    for pair, token in enumerate(tree.token.tolist()):
        tokens = tree.pair_tokens[offsets[pair] : offsets[pair + 1]].tolist()
        assert token == tokens[0] == min(tokens)
        assert tree.streams.weight_kl[pair].item() == np.float32(weight[tokens].sum())
        assert tree.streams.old_logprob[pair] == single.streams.old_logprob[place[token]]


@pytest.mark.parametrize("shared", ["owner", "split"])
def test_tokens_without_weight_have_no_pair(shared: str) -> None:
    batch = Rollouts.random(POLICY, 2).batch
    recipe = recipes.GRPO.replace(loss=POLICY, shared=shared)
    (update,) = recipe.updates(batch)
    packs = list(update.pack(max_tokens=10**6))
    assert all((pack.streams.weight_kl > 0).all() for pack in packs)
    pair_count = sum(len(pack.token) for pack in packs)
    stored = np.unique(np.concatenate([pack.node_token.numpy() for pack in packs])).size
    assert pair_count == stored if shared == "owner" else pair_count > stored


def test_ranks_get_the_same_rounds_and_all_of_it() -> None:
    rollouts = Rollouts.random(POLICY, 0)
    (update,) = recipes.GRPO.replace(loss=POLICY).updates(rollouts.batch)
    for layout in ("sequence", "tree"):
        for balance in ("tokens", "work"):
            ranks = [list(packs) for packs in update.pack(max_tokens=80, layout=layout, shards=4, balance=balance)]
            again = [list(packs) for packs in update.pack(max_tokens=80, layout=layout, shards=4, balance=balance)]
            assert len(ranks) == 4
            assert len({len(packs) for packs in ranks}) == 1
            for one, other in zip(chain(*ranks), chain(*again), strict=True):
                torch.testing.assert_close(one.input_ids, other.input_ids, rtol=0, atol=0)
                torch.testing.assert_close(one.token, other.token, rtol=0, atol=0)
            for number in range(len(ranks[0])):
                sizes = [len(packs[number].input_ids) for packs in ranks]
                assert max(sizes) <= 80
                if number + 1 < len(ranks[0]):
                    assert min(sizes) > max(sizes) / 2
            trained = sorted(chain.from_iterable(pack.pair_tokens.tolist() for pack in chain(*ranks)))
            (single,) = update.pack(max_tokens=10**6)
            assert trained == sorted(single.token.tolist())


@pytest.mark.parametrize("name", LOSSES)
def test_a_rank_without_work_adds_nothing(name: str) -> None:
    policy = LOSSES[name]
    rollouts = Rollouts.random(policy, 0)
    agree_on_branches(rollouts)
    update = rollouts.update(policy)
    ranks = [list(packs) for packs in update.pack(max_tokens=10**6, layout="tree", shards=40)]
    empty = [pack for (pack,) in ranks if not len(pack.token)]
    assert empty
    for pack in empty:
        assert (len(pack.input_ids), pack.cu_seqlens.tolist(), pack.max_seqlen) == (1, [0, 1], 1)
        outputs = rollouts.outputs(pack.token)
        value = update.loss(outputs, pack)
        assert value == 0
        for gradient in rollouts.gradients(value + 0 * outputs.logprob.sum())[1]:
            assert (gradient == 0).all()


@pytest.mark.parametrize("layout", ["sequence", "tree"])
def test_reused_buffers_hold_the_same_packs(layout: str) -> None:
    rollouts = Rollouts.random(LOSSES["rome"], 0)
    (update,) = recipes.GRPO.replace(loss=LOSSES["rome"]).updates(rollouts.batch)
    fresh = list(update.pack(max_tokens=50, layout=layout))
    assert len(fresh) > 2
    places = []
    for pack, expected in zip(update.pack(max_tokens=50, layout=layout, buffers=PackBuffers(50)), fresh, strict=True):
        for name, value in vars(expected).items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(getattr(pack, name), value, rtol=0, atol=0)
        for name, stream in expected.streams.items():
            torch.testing.assert_close(pack.streams[name], stream, rtol=0, atol=0)
        places.append(pack.input_ids.data_ptr())
    assert len(set(places)) == 2  # two turns
    with pytest.raises(InvalidInputError, match="max_tokens is -1"):
        PackBuffers(-1)


def test_values_go_back_to_every_branch() -> None:
    rollouts = Rollouts.random(POLICY, 0)
    agree_on_branches(rollouts)
    (update,) = recipes.GRPO.replace(loss=POLICY).updates(rollouts.batch)
    column = np.full(len(rollouts.batch.column("token", "token")), np.nan)
    for pack in update.pack(max_tokens=80, layout="tree"):
        pack.to_tokens(rollouts.leaves["logprob"][pack.token], column)
    finite = np.isfinite(column)
    (single,) = update.pack(max_tokens=10**6)
    assert np.flatnonzero(finite).tolist() == sorted(single.token.tolist())
    np.testing.assert_array_equal(column[finite], rollouts.leaves["logprob"].detach().numpy()[finite])


def test_where_tokens_come_from() -> None:
    batch = grow(0)
    of_steps, of_tokens = batch.offsets("step"), batch.offsets("token")
    expected = [
        (draw, step, token - of_tokens[step])
        for draw in range(batch.num_draws)
        for step in range(of_steps[draw], of_steps[draw + 1])
        for token in range(of_tokens[step], of_tokens[step + 1])
    ]
    located = batch.locate_tokens(np.arange(len(expected)))
    assert list(zip(*(column.tolist() for column in located), strict=True)) == expected
    with pytest.raises(InvalidInputError, match=rf"tokens\[1\] is {len(expected)}, but the batch has {len(expected)}"):
        batch.locate_tokens([0, len(expected)])


def test_one_rank_has_a_long_tree_in_pieces() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    trunk = forest.start(0, 0)
    forest.append(trunk, list(range(10)), kind="prompt")
    branches = [trunk, *(forest.fork(trunk) for _ in range(7))]
    for number, branch in enumerate(branches):
        forest.append(branch, [100 + number, *range(19)], kind="action", logprobs=np.full(20, -1.0))
        forest.finish(branch, reward=float(branch))
    batch: Batch = recipes.GRPO.credit(forest.freeze())
    (update,) = recipes.GRPO.updates(batch)
    packs = list(update.pack(max_tokens=50, layout="tree"))
    # Two branches of 19 rows continue the ten of the prompt.
    assert [len(pack.input_ids) for pack in packs] == [48] * 4
    with pytest.raises(InvalidInputError, match="max_tokens is 28, but draw 0 has a sequence of 29 tokens"):
        update.pack(max_tokens=28, layout="tree")
    group = loss.OutcomeClassifier()
    (update,) = recipes.GRPO.replace(loss=group).updates(batch.with_columns("token", reference_logprob=-np.ones(160)))
    with pytest.raises(
        InvalidInputError,
        match=r"max_tokens is 161, but the loss needs draw 0 in one pack .* 162 tokens; .*gradient_cached",
    ):
        update.pack(max_tokens=161, layout="tree")
    (pack,) = update.pack(max_tokens=162, layout="tree")
    assert len(pack.input_ids) == 10 + 8 * 19


def test_rows_of_tokens_are_the_forests_tree() -> None:
    rng = np.random.default_rng(0)
    trunk, tails = rng.integers(0, 9, 12), rng.integers(0, 9, (5, 6))
    tokens = np.concatenate([np.concatenate([trunk, tail]) for tail in tails])
    offsets = np.arange(6) * 18
    trained = np.tile(np.arange(18) >= 8, 5)
    old = np.tile(np.arange(18.0), 5)
    weight = rng.random(90)
    buffers = PackBuffers(10)
    tree = tree_layout(tokens, offsets, trained=trained, summed={"weight": weight}, same={"old": old}, buffers=buffers)
    assert (tree.streams["weight"].sum(), len(tree.pair_tokens)) == (pytest.approx(weight[trained].sum(), rel=1e-6), 50)
    assert tree.input_ids[:12].tolist() == trunk.tolist()
    shared = tree.position_ids[tree.source_row] < 11
    assert np.diff(tree.pair_offsets)[shared].tolist() == [5] * 4
    old[9] = -3.0
    apart = tree_layout(tokens.tolist(), offsets, trained=trained, same={"old": old})
    assert len(apart.token) == len(tree.token) + 1
    assert apart.input_ids.tolist() == tree.input_ids.tolist()
    with pytest.raises(InvalidInputError, match="give token ids of 32 bits"):
        tree_layout([2**40], [0, 1])
    with pytest.raises(InvalidInputError, match="trained is true for the first token of row 0"):
        tree_layout(tokens, offsets, trained=np.ones(90, bool))
    empty = tree_layout([], [0])
    assert (len(empty.input_ids), empty.cu_seqlens.tolist(), empty.pair_offsets.tolist()) == (0, [0], [0])


def test_balanced_bins() -> None:
    rng = np.random.default_rng(0)
    costs = rng.integers(1, 1000, 400)
    bins = balanced(costs, 16)
    assert sorted(np.concatenate(bins).tolist()) == list(range(400))
    sums = [costs[items].sum() for items in bins]
    assert max(sums) <= 1.002 * np.mean(sums)
    with pytest.raises(InvalidInputError, match=r"costs\[0\] is -1"):
        balanced([-1], 2)
    with pytest.raises(InvalidInputError, match="bins is 0"):
        balanced([1], 0)


def test_outputs_of_packs_fit_the_losses_of_any_layout() -> None:
    """GSPO: sequences keep their rows, while hidden states are shared."""
    policy = loss.Policy(ratio=loss.Ratio("sequence"))
    rollouts = Rollouts.random(policy, 0)
    update = rollouts.update(policy)
    (pack,) = update.pack(max_tokens=10**6, layout="tree")
    counts = np.bincount(pack.source_row.numpy())
    assert counts.max() > 1
    assert len(pack.token) == len(pack.pair_tokens)
    assert isinstance(rollouts.outputs(pack.token), PackOutput)
