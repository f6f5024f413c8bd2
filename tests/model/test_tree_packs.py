"""Packs in the tree layout: what each row may see, which tokens are trained where, and what is folded."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import polars as pl
import pytest
from branches import agree_on_branches, by_stored
from hypothesis import given, settings
from hypothesis import strategies as st
from systems import LOSSES
from updates import Rollouts, close, grow

from agentrl_core import Batch

EACH = pytest.mark.parametrize("name", LOSSES)


def contexts(batch: Batch, draws: np.ndarray) -> dict[int, list[int]]:
    """Of every trained token the tokens before it, as indices of stored tokens: from the sequence layout."""
    found = {}
    stored = batch.column("token", "node_token")
    by_node = batch.column("node_token", "token")
    for pack in batch.plan(draws, 10**6):
        for source, token in zip(pack.source_row, pack.token, strict=True):
            begin = pack.cu_seqlens[np.searchsorted(pack.cu_seqlens, source, side="right") - 1]
            found[int(token)] = pack.input_ids[begin : source + 1].tolist()
            assert stored[by_node[token]] == batch.column("token", "token")[token]
    return found


def seen(pack: object, row: int) -> list[int]:
    """The rows that a row attends to, by the definition of the mask."""
    rows = np.arange(len(pack.input_ids))
    return np.flatnonzero((rows <= row) & (row < pack.subtree_end)).tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), room=st.integers(0, 60), by_group=st.booleans())
def test_a_row_sees_its_own_path_and_every_token_is_trained_once(seed: int, room: int, by_group: bool) -> None:
    batch = grow(seed % 8)
    rng = np.random.default_rng(seed)
    draws = rng.permutation(batch.num_draws)[: rng.integers(1, batch.num_draws + 1)]
    before = contexts(batch, draws)
    unit_of = batch.keys("group_id", "draw").astype(np.int64) if by_group else None
    (whole,) = batch.plan(draws, 10**6, layout="tree")
    longest = max(len(path) for path in before.values())
    if by_group:
        longest = max(
            len(pack.input_ids)
            for group in np.unique(unit_of[draws])
            for pack in batch.plan(draws[unit_of[draws] == group], 10**6, layout="tree")
        )
    packs = batch.plan(draws, longest + room, layout="tree", unit_of=unit_of)
    trained, units = [], defaultdict(set)
    targets = batch.column("token", "token")
    of_draw, _, _ = batch.locate(np.arange(len(targets)))
    for number, pack in enumerate(packs):
        assert len(pack.input_ids) <= longest + room
        assert pack.cu_seqlens.tolist() == [
            row for row in range(len(pack.input_ids)) if pack.position_ids[row] == 0
        ] + [len(pack.input_ids)]
        assert pack.max_seqlen == np.diff(pack.cu_seqlens).max()
        for source, token in zip(pack.source_row.tolist(), pack.token.tolist(), strict=True):
            rows = seen(pack, source)
            assert pack.input_ids[rows].tolist() == before[token]
            assert pack.position_ids[rows].tolist() == list(range(len(rows)))
        assert pack.target.tolist() == targets[pack.token].tolist()
        # No row is there twice: what two rows see differs.
        paths = {tuple(seen(pack, row)) for row in range(len(pack.input_ids))}
        assert len(paths) == len(pack.input_ids)
        trained += pack.token.tolist()
        for draw in of_draw[pack.token].tolist():
            units[0 if unit_of is None else int(unit_of[draw])].add(number)
    assert sorted(trained) == sorted(before)
    if by_group:
        assert all(len(numbers) == 1 for numbers in units.values())
    # Stored tokens that some trained token has before it, each once.
    assert len(whole.input_ids) == len(read_tokens(batch, draws))


def read_tokens(batch: Batch, draws: np.ndarray) -> set[int]:
    """The stored tokens that come before a trained one: from the tables, leaf to root."""
    nodes = {row["node_id"]: row for row in pl.DataFrame(batch.nodes).iter_rows(named=True)}
    ids = list(nodes)
    first = dict(zip(ids, batch.offsets("node_token")[:-1].tolist(), strict=True))
    node_of = np.repeat(ids, np.diff(batch.offsets("node_token")))
    stored, trainable = batch.column("node_token", "token"), batch.column("trainable", "token")
    draw_of, _, _ = batch.locate(np.arange(len(stored)))
    found: set[int] = set()
    for token in np.flatnonzero(trainable & np.isin(draw_of, draws)):
        node, end = int(node_of[stored[token]]), int(stored[token]) - first[int(node_of[stored[token]])]
        while node is not None:
            found |= set(range(first[node], first[node] + end))
            parent, end = nodes[node]["parent_id"], nodes[node]["parent_end"]
            if parent is not None and end is None:
                end = len(nodes[parent]["tokens"])
            node = parent
    return found


@EACH
@pytest.mark.parametrize("shards", [None, 3])
def test_the_tree_layout_is_the_sequence_layout(name: str, shards: int | None) -> None:
    """Value and gradient, whatever the budget, the number of ranks and the balance; folded or not."""
    policy = LOSSES[name]
    rollouts = Rollouts.random(policy, seed=len(name) % 3)
    agree_on_branches(rollouts)
    update = rollouts.update(policy)
    (single,) = update.pack(max_tokens=10**6)
    wanted = by_stored(rollouts, rollouts.by_packs(update, [single]))
    (tree,) = update.pack(max_tokens=10**6, layout="tree")
    assert len(tree.input_ids) < len(single.input_ids)
    folds = policy.foldable and not {"step", "sequence", "group", "pair", "stratum"} & set(policy.streams)
    stored = np.unique(single.node_token).size
    assert len(tree.token) == (stored if folds else len(single.token))
    assert sorted(tree.pair_tokens.tolist()) == sorted(single.token.tolist())
    if shards is None:
        assert close(by_stored(rollouts, rollouts.by_packs(update, [tree])), wanted, 1e-6)
    if policy.unit == "update":
        return
    for limit in (60, 200) if policy.unit not in ("pair", "group") else (200, 400):
        for balance in ("tokens", "work"):
            packs = update.pack(max_tokens=limit, layout="tree", shards=shards, balance=balance)
            ranks = [list(packs)] if shards is None else [list(rank) for rank in packs]
            assert len({len(rank) for rank in ranks}) == 1
            every = [pack for rank in ranks for pack in rank]
            assert sorted(np.concatenate([pack.pair_tokens for pack in every]).tolist()) == sorted(
                single.token.tolist()
            )
            assert sum(len(pack.token) for pack in every) == len(tree.token)
            assert close(by_stored(rollouts, rollouts.by_packs(update, every)), wanted, 1e-6)
