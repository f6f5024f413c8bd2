"""Packs in the tree layout: the rows that each row attends to, the trained tokens, and folding."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from branches import agree_on_branches, by_place, contexts, places
from hypothesis import given, settings
from hypothesis import strategies as st
from systems import LOSSES
from updates import Rollouts, close, grow

from agentrl_core import Forest

EACH = pytest.mark.parametrize("name", LOSSES)


def attended_rows(pack: object, row: int) -> list[int]:
    """Return the rows that a row attends to, by the definition of the mask."""
    rows = np.arange(len(pack.input_ids))
    return np.flatnonzero((rows <= row) & (row < pack.subtree_end)).tolist()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), room=st.integers(0, 60), by_group=st.booleans())
def test_each_row_attends_to_its_own_path_and_each_token_is_trained_once(seed: int, room: int, by_group: bool) -> None:
    batch = grow(seed % 8)
    rng = np.random.default_rng(seed)
    draws = rng.permutation(batch.num_draws)[: rng.integers(1, batch.num_draws + 1)]
    before = contexts(batch, draws)
    unit_of = batch.keys("group_id", "draw").astype(np.int64) if by_group else None
    (single,) = batch.plan(draws, 10**6, layout="tree")
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
    of_draw, _, _ = batch.locate_tokens(np.arange(len(targets)))
    for number, pack in enumerate(packs):
        assert len(pack.input_ids) <= longest + room
        assert pack.cu_seqlens.tolist() == [
            row for row in range(len(pack.input_ids)) if pack.position_ids[row] == 0
        ] + [len(pack.input_ids)]
        assert pack.max_seqlen == np.diff(pack.cu_seqlens).max()
        for source, token in zip(pack.source_row.tolist(), pack.token.tolist(), strict=True):
            rows = attended_rows(pack, source)
            assert pack.input_ids[rows].tolist() == before[token]
            assert pack.position_ids[rows].tolist() == list(range(len(rows)))
        assert pack.target.tolist() == targets[pack.token].tolist()
        # No row is duplicated: any two rows attend to different tokens.
        paths = {tuple(pack.input_ids[attended_rows(pack, row)]) for row in range(len(pack.input_ids))}
        assert len(paths) == len(pack.input_ids)
        trained += pack.token.tolist()
        for draw in of_draw[pack.token].tolist():
            units[0 if unit_of is None else int(unit_of[draw])].add(number)
    assert sorted(trained) == sorted(before)
    if by_group:
        assert all(len(numbers) == 1 for numbers in units.values())
    # Everything before some trained token, each once.
    assert len(single.input_ids) == len(prefixes(before))


def prefixes(before: dict[int, list[int]]) -> set[tuple[int, ...]]:
    """Return all different prefixes in the contexts of some tokens."""
    return {tuple(path[:end]) for path in before.values() for end in range(1, len(path) + 1)}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), vocabulary=st.integers(1, 3))
def test_equal_sampled_prefixes_are_run_once(seed: int, vocabulary: int) -> None:
    """Draws from a small vocabulary, one by one: shared prefixes are stored apart, in nodes of any lengths."""
    rng = np.random.default_rng(seed)
    forest = Forest()
    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(4):
            trajectory = forest.start(group, member)
            forest.append(trajectory, rng.integers(0, vocabulary, rng.integers(1, 3)), kind="prompt")
            for _ in range(rng.integers(1, 4)):
                count = int(rng.integers(1, 4))
                old = -rng.integers(1, 3, count).astype(float)
                forest.append(trajectory, rng.integers(0, vocabulary, count), kind="action", logprobs=old)
                forest.step(trajectory)
            forest.finish(trajectory, reward=0.0)
    batch = forest.freeze()
    draws = np.arange(batch.num_draws)
    before = contexts(batch, draws)
    old = np.asarray(batch.column("behaviour_logprob", "token"), np.float32)
    (pack,) = batch.plan(draws, 10**6, layout="tree", fold=[old])
    assert len(pack.input_ids) == len(prefixes(before))
    for source, token in zip(pack.source_row, pack.token.tolist(), strict=True):
        assert pack.input_ids[attended_rows(pack, source)].tolist() == before[token]
    # Equal tokens after equal tokens are one pair if their old log-probs agree.
    kinds = dict.fromkeys(zip(places(batch).tolist(), old.tolist(), strict=True))
    assert len(pack.token) == len(kinds)
    ends = pack.pair_offsets
    assert sorted(pack.pair_tokens.tolist()) == list(range(len(old)))
    for pair in range(len(pack.token)):
        joined = pack.pair_tokens[ends[pair] : ends[pair + 1]]
        assert len({(places(batch)[token], old[token]) for token in joined.tolist()}) == 1


def test_equal_placeholders_of_other_images_are_not_one() -> None:
    forest = Forest()
    forest.add_group(0, "task")
    shown = [forest.add_blob(content) for content in (b"one", b"two")]
    for member, image in enumerate([shown[0], shown[1], shown[0]]):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [9, 9], kind="observation", blobs=[image])
        forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.1])
        forest.finish(trajectory, reward=0.0)
    (pack,) = forest.freeze().plan([0, 1, 2], 100, layout="tree")
    assert pack.input_ids.tolist() == [1, 2, 9, 9, 3, 9, 9, 3]
    assert pack.source_row.tolist().count(3) == 2  # the first and the third draw


@EACH
@pytest.mark.parametrize("shards", [None, 3])
def test_the_tree_layout_is_the_sequence_layout(name: str, shards: int | None) -> None:
    """Value and gradient are the same for any budget, number of ranks and balance, folded or not."""
    policy = LOSSES[name]
    rollouts = Rollouts.random(policy, seed=len(name) % 3)
    agree_on_branches(rollouts)
    update = rollouts.update(policy)
    (single,) = update.pack(max_tokens=10**6)
    expected = by_place(rollouts, rollouts.by_packs(update, [single]))
    (tree,) = update.pack(max_tokens=10**6, layout="tree")
    assert len(tree.input_ids) < len(single.input_ids)
    folds = policy.foldable and not {"step", "sequence", "group", "pair", "stratum"} & set(policy.streams)
    shares = update.prepared.weights(update.draws)[1]
    same = [places(rollouts.batch), *update.prepared.same.values(), *shares.values()]
    distinct = np.unique([column[single.token] for column in same], axis=1).shape[1]
    assert len(tree.token) == (distinct if folds else len(single.token))
    assert sorted(tree.pair_tokens.tolist()) == sorted(single.token.tolist())
    if shards is None:
        assert close(by_place(rollouts, rollouts.by_packs(update, [tree])), expected, 1e-6)
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
            assert close(by_place(rollouts, rollouts.by_packs(update, every)), expected, 1e-6)
