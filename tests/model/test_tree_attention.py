"""The tree layout: hidden states, log-probs, entropies and gradients equal those of separate sequences."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hand_made import FAMILIES, VOCABULARY, WINDOW, WINDOWED, tiny_model
from hypothesis import given
from hypothesis import strategies as st
from paths import contexts
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_mask, flex_attention
from updates import columns, grow

from agentrl_core import loss, recipes
from agentrl_core.model import attention as attention_module
from agentrl_core.model import flex_masks
from agentrl_core.model.attention import Span
from agentrl_core.model.pack import Pack, Streams


@dataclass(frozen=True)
class Path:
    """One sequence: its tree, its stored tokens, and which of them are trained."""

    tree: int
    stored: tuple[int, ...]
    trained: tuple[bool, ...]


@dataclass(frozen=True)
class Grove:
    """Random trees: the token and the inverse temperature of each stored token, and the paths."""

    token: np.ndarray
    scale: np.ndarray
    paths: list[Path]

    @classmethod
    def random(cls, seed: int, trees: int = 2, paths: int = 5, most: int = 9) -> Grove:
        """Return random paths; each forks from an earlier one of its tree, or starts a new context."""
        rng = np.random.default_rng(seed)
        count, all_paths = 0, []
        trainable: list[bool] = []
        for tree in range(trees):
            members: list[Path] = []
            for _ in range(int(rng.integers(1, paths + 1))):
                before = members[rng.integers(len(members))].stored if members else ()
                prefix = before[: rng.integers(0, len(before) + 1)]
                fresh = int(rng.integers(2, most + 1))
                stored = (*prefix, *range(count, count + fresh))
                count += fresh
                trainable += (rng.random(fresh) < 0.6).tolist()
                # A branch need not train the tokens that it shares, and no position predicts the first token of a path.
                trained = tuple(depth > 0 and trainable[token] for depth, token in enumerate(stored))
                members.append(Path(tree, stored, trained))
            all_paths += members
        return cls(rng.integers(0, VOCABULARY, count), rng.uniform(0.5, 2.0, count), all_paths)

    def pairs(self, paths: list[int]) -> list[tuple[int, int]]:
        """Return path and depth of every trained token of some paths."""
        return [(path, depth) for path in paths for depth, on in enumerate(self.paths[path].trained) if on]

    def separate(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Return log-probs and entropies of all pairs, from the model's own forward on each path."""
        logprobs, entropies = [], []
        for path in self.paths:
            tokens, trained = torch.from_numpy(self.token[list(path.stored)]), torch.tensor(path.trained)
            logits = model(input_ids=tokens[None]).logits[0, :-1]
            distribution = (logits * torch.from_numpy(self.scale[list(path.stored)])[1:, None]).log_softmax(-1)
            logprobs.append(distribution.gather(1, tokens[1:, None])[trained[1:], 0])
            entropies.append(-(distribution.exp() * distribution).sum(-1)[trained[1:]])
        return torch.cat(logprobs), torch.cat(entropies)

    def pack(self, paths: list[int]) -> Pack:
        """Return some paths in the tree layout, token by token: stored tokens once, in depth-first order."""
        tries: dict[int, dict] = {}
        for path in paths:
            node = tries.setdefault(self.paths[path].tree, {})
            for token in self.paths[path].stored:
                node = node.setdefault(token, {})
        rows: list[int] = []
        depths: list[int] = []
        ends: dict[int, int] = {}

        def visit(node: dict, depth: int) -> None:
            for token, children in node.items():
                row = len(rows)
                rows.append(token)
                depths.append(depth)
                visit(children, depth + 1)
                ends[row] = len(rows)

        starts = [0]
        for trie in tries.values():
            visit(trie, 0)
            starts.append(len(rows))
        pairs = self.pairs(paths)
        target = np.array([self.paths[path].stored[depth] for path, depth in pairs])
        source = [rows.index(self.paths[path].stored[depth - 1]) for path, depth in pairs]
        return Pack(
            input_ids=torch.from_numpy(self.token[rows]),
            position_ids=torch.tensor(depths),
            cu_seqlens=torch.tensor(starts, dtype=torch.int32),
            max_seqlen=int(np.diff(starts).max()),
            source_row=torch.tensor(source),
            target=torch.from_numpy(self.token[target]),
            token=torch.arange(len(pairs)),
            node_token=torch.from_numpy(target),
            streams=Streams(inverse_temperature=torch.from_numpy(self.scale[target])),
            subtree_end=torch.tensor([ends[row] for row in range(len(rows))], dtype=torch.int32),
        )


def gradients(model: nn.Module, outputs: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, Tensor]:
    """Return gradients of a sum over pairs, each with its own weights for log-prob and entropy."""
    model.zero_grad()
    for pair, logprob, entropy in outputs:
        ((0.3 + pair).sin() * logprob + (0.7 * pair).cos() * entropy).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def by_packs(grove: Grove, model: nn.Module, parts: list[list[int]]) -> list[tuple[Tensor, Tensor, Tensor]]:
    place = {pair: number for number, pair in enumerate(grove.pairs(list(range(len(grove.paths)))))}
    outputs = []
    for paths in parts:
        output = grove.pack(paths).run(model)
        numbers = torch.tensor([place[pair] for pair in grove.pairs(paths)], dtype=torch.float64)
        outputs.append((numbers, output.logprob, output.entropy))
    return outputs


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_of_trees_are_those_of_separate_sequences(
    family: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model(family)
    grove = Grove.random(seed, trees=1 + seed % 3)
    every = list(range(len(grove.paths)))
    logprob, entropy = grove.separate(model)
    numbers = torch.arange(len(logprob), dtype=torch.float64)
    expected = gradients(model, [(numbers, logprob, entropy)])
    assert max(gradient.abs().max() for gradient in expected.values()) > 1e-2
    splits = {"one pack": [every], "a tree in several packs": [every[::2], every[1::2]]}
    for rows in (256, 7):  # rows per block: all in one, and blocks that end anywhere
        monkeypatch.setattr(attention_module, "_QUERY_BLOCK", rows)
        for name, parts in splits.items():
            packs = [paths for paths in parts if grove.pairs(paths)]
            outputs = by_packs(grove, model, packs)
            order = torch.cat([pair for pair, _, _ in outputs]).argsort()
            for index, right in ((1, logprob), (2, entropy)):
                combined = torch.cat([output[index] for output in outputs])[order]
                torch.testing.assert_close(combined, right, rtol=0, atol=1e-10)
            result = gradients(model, outputs)
            for parameter, gradient in expected.items():
                torch.testing.assert_close(
                    result[parameter],
                    gradient,
                    rtol=0,
                    atol=1e-9,
                    msg=lambda text, at=(name, parameter): f"{at}: {text}",
                )


@pytest.mark.parametrize("layout", ["tree", "sequence"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_gradients_of_updates_are_those_of_separate_sequences(family: str, seed: int, layout: str) -> None:
    """Packs of a batch: forks inside nodes, rewritten contexts, trees cut over packs, folded tokens."""
    batch, model = columns(grow(seed), seed, per="token"), tiny_model(family)
    (update,) = recipes.GRPO.replace(loss=loss.Policy(entropy=0.1)).updates(batch)
    scale, ids = batch.column("inverse_temperature", "token"), batch.column("token", "token")
    steps, tokens = batch.offsets("step"), batch.offsets("token")
    factor = torch.from_numpy(np.random.default_rng(seed).normal(size=(2, len(ids))))
    trained, sizes = [], []
    for pack in update.pack(max_tokens=45, layout=layout):
        output = pack.run(model)
        sums = factor[:, pack.pair_tokens].tensor_split(pack.pair_offsets[1:-1], dim=1)
        of_pair = torch.stack([part.sum(1) for part in sums], dim=1)
        (of_pair[0] * output.logprob + of_pair[1] * output.entropy).sum().backward()
        sizes.append(len(pack.target))
        trained += pack.pair_tokens.tolist()
    assert len(sizes) > 2
    assert len(set(trained)) == len(trained) >= sum(sizes)
    assert (sum(sizes) < len(trained)) == (layout == "tree")
    gradient = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}

    model.zero_grad()
    chosen = set(trained)
    for draw, draw_contexts in enumerate(contexts(batch)):
        for step in range(steps[draw], steps[draw + 1]):
            rows = [row for row in range(tokens[step], tokens[step + 1]) if row in chosen]
            before = len(draw_contexts[step - steps[draw]]) + np.array(rows, dtype=np.int64) - tokens[step] - 1
            inputs = draw_contexts[step - steps[draw]] + ids[tokens[step] : tokens[step + 1]].tolist()
            logits = model(input_ids=torch.tensor([inputs])).logits[0, before]
            dist = (logits * torch.from_numpy(scale[rows])[:, None]).log_softmax(-1)
            logprob = dist.gather(1, torch.from_numpy(ids[rows]).long()[:, None])[:, 0]
            entropy = -(dist.exp() * dist).sum(-1)
            (factor[0, rows] * logprob + factor[1, rows] * entropy).sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(gradient[name], parameter.grad, rtol=0, atol=1e-9)
    assert max(parameter.grad.abs().max() for parameter in model.parameters()) > 1e-2


def test_a_shared_token_is_one_row() -> None:
    grove = Grove(
        np.arange(6),
        np.ones(6),
        [Path(0, (0, 1, 2, 3), (False, True, True, True)), Path(0, (0, 1, 4, 5), (False, True, False, True))],
    )
    pack = grove.pack([0, 1])
    assert pack.input_ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert pack.position_ids.tolist() == [0, 1, 2, 3, 2, 3]
    assert pack.subtree_end.tolist() == [6, 6, 4, 4, 6, 6]
    assert pack.source_row.tolist() == [0, 1, 2, 0, 4]
    torch.testing.assert_close(
        pack.run(tiny_model("llama")).logprob, grove.separate(tiny_model("llama"))[0], rtol=0, atol=1e-10
    )


@st.composite
def subtree_ends(draw: st.DrawFn) -> list[int]:
    """Return the end of each row's descendants, for random parents in depth-first order."""
    count = draw(st.integers(1, 300))
    climb = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    ends = [count] * count
    path: list[int] = []
    for row in range(count):
        for _ in range(min(climb[row] - 3, len(path))):
            ends[path.pop()] = row
        path.append(row)
    return ends


@given(subtree_ends(), st.none() | st.integers(1, 300))
def test_masks_are_those_of_the_definition(ends: list[int], window: int | None) -> None:
    """Check every block of rows with its keys, and the blocks of FlexAttention."""
    rows = torch.arange(len(ends))
    end = torch.tensor(ends, dtype=torch.int32)
    expected = (rows <= rows[:, None]) & (rows[:, None] < end)
    depth = expected.sum(1) - 1
    if window is not None:
        expected &= depth[:, None] - depth < window
    layout = attention_module.TreeAttention(end, depth)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention_module, "_QUERY_BLOCK", 32)
        blocks = layout.blocks(window)
    result = torch.zeros_like(expected)
    for queries, keys, mask in blocks:
        part = torch.zeros(len(mask), len(ends), dtype=torch.bool)
        part[:, keys] = mask
        result[queries] = part
    assert result.equal(expected)
    flex = layout.block_mask(window)
    flex_mask = create_mask(flex.mask_mod, None, None, len(ends), len(ends), device="cpu")[0, 0]
    assert flex_mask.equal(expected)
    # A block that FlexAttention skips has no pair; one that it computes without a mask has all.
    count = -(-len(ends) // 128)
    padded = torch.zeros(128 * count, 128 * count, dtype=torch.bool)
    padded[: len(ends), : len(ends)] = expected
    tiles = padded.view(count, 128, count, 128).transpose(1, 2)
    kinds = torch.zeros(count, count, dtype=torch.int64)
    for kind, number, index in (
        (1, flex.kv_num_blocks, flex.kv_indices),
        (2, flex.full_kv_num_blocks, flex.full_kv_indices),
    ):
        for row in range(count):
            kinds[row, index[0, 0, row, : number[0, 0, row]].long()] = kind
    visible = tiles.any(-1).any(-1)
    assert (kinds > 0).logical_or(~visible).all()
    if window is None or all(number == len(ends) for number in ends):  # in one sequence it is exact
        assert (kinds > 0).equal(visible)
    height = (torch.arange(len(padded)) < len(ends)).view(count, 128)
    full = (tiles | ~height[:, None, :, None]).all(-1).all(-1)
    assert (kinds == 2).logical_and(~full).sum() == 0
    assert (kinds == 2).equal(full & (torch.arange(count) < torch.arange(count)[:, None]))


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_without_forks_are_sequences(family: str) -> None:
    """Packs of chains run without a mask, to the same log-probs; if a tree of the pack has a fork, all use the mask."""
    model = tiny_model(family)
    alone, forked = Grove.random(1, trees=4, paths=1), Grove.random(1, trees=4, paths=3)
    for grove, kind in ((alone, attention_module.SequenceAttention), (forked, attention_module.TreeAttention)):
        pack = grove.pack(list(range(len(grove.paths))))
        assert type(pack._attention) is kind
        assert pack.subtree_end is not None
    assert len(alone.paths) == 4
    pack = alone.pack(list(range(4)))
    output = pack.run(model)
    logprobs, entropies = alone.separate(model)
    torch.testing.assert_close(output.logprob, logprobs, rtol=0, atol=1e-12)
    torch.testing.assert_close(output.entropy, entropies, rtol=0, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("window", [None, 5, 40])
@pytest.mark.parametrize("softcap", [None, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_flex_attention_gives_the_same(seed: int, window: int | None, softcap: float | None) -> None:
    """Its forward pass also runs on a CPU; its backward pass does not."""
    grove = Grove.random(seed, trees=4, paths=12, most=30)
    layout = grove.pack(list(range(len(grove.paths))))._attention
    torch.manual_seed(seed)
    count = len(layout.subtree_end)
    assert count > 128
    q, k, v = (torch.randn(count, heads, 16) for heads in (4, 2, 2))
    mine = layout.attend(q, k, v, scaling=0.3, dropout=0.0, window=window, softcap=softcap)
    theirs = flex_attention(
        *(states.transpose(0, 1)[None] for states in (q, k, v)),
        score_mod=None if softcap is None else flex_masks.soft_cap(softcap, q.device),
        block_mask=layout.block_mask(layout.cut(window)),
        scale=0.3,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)
    masks = [mask.numel() for _, _, mask in layout.blocks(layout.cut(window))]
    assert sum(masks) < count * count


@pytest.mark.parametrize("lengths", [[700], [300, 1, 600, 260]], ids=str)
def test_a_window_bounds_the_masks(lengths: list[int]) -> None:
    """Windows of sequences and of trees: a block of rows has the keys of its rows and of a window before them."""
    starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
    layout = attention_module.SequenceAttention(starts, max(lengths)).chains
    rows = torch.arange(sum(lengths))
    sequence = torch.bucketize(rows, starts[1:], right=True)
    expected = (rows <= rows[:, None]) & (rows[:, None] - rows < 50) & (sequence == sequence[:, None])
    result = torch.zeros_like(expected)
    for queries, keys, mask in layout.blocks(50):
        assert mask.shape[1] <= mask.shape[0] + 49
        part = torch.zeros(len(mask), len(rows), dtype=torch.bool)
        part[:, keys] = mask
        result[queries] = part
    assert result.equal(expected)


@pytest.mark.parametrize("family", WINDOWED)
def test_windows_and_softcaps_change_the_outputs(family: str) -> None:
    """The outputs of the models above change with a window or a cap."""
    grove = Grove.random(2)
    pack = grove.pack(list(range(len(grove.paths))))
    model = tiny_model(f"{family}, window")
    changes = {"sliding_window": 2 * WINDOW}
    changes |= {name: 2.0 for name in WINDOWED[family] if name.endswith("softcapping")}
    for change in changes.items():
        other = tiny_model(f"{family}, window", **dict([change]))
        assert (pack.run(model).logprob - pack.run(other).logprob).abs().max() > 1e-4


def test_attention_scores_with_a_softcap_are_not_saved_for_the_backward_pass() -> None:
    """The backward pass recomputes them, block by block."""
    layout = attention_module.SequenceAttention(torch.tensor([0, 600], dtype=torch.int32), 600)
    states = [torch.randn(600, heads, 8, requires_grad=True) for heads in (4, 2, 2)]
    sizes: list[int] = []

    def keep(saved: Tensor) -> Tensor:
        sizes.append(saved.numel())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        layout.attend(*states, scaling=None, dropout=0.0, softcap=1.0)
    assert 0 < sum(sizes) < 600 * 600


def test_dropout_of_capped_attention_is_that_of_the_definition() -> None:
    """For many equal queries the mean is the value that all keys have; half of the probabilities are dropped."""
    layout = attention_module.SequenceAttention(torch.tensor([0, 400], dtype=torch.int32), 400)
    states = torch.ones(400, 2, 8)
    torch.manual_seed(0)
    out = layout.attend(states, states, states, scaling=None, dropout=0.5, softcap=1.0)
    assert out[0].unique().tolist() in ([0.0], [2.0], [0.0, 2.0])
    assert abs(out.mean() - 1.0) < 0.1
    assert out[200:].std() > 0.01


def test_gradient_checkpointing_and_to() -> None:
    model, grove = tiny_model("qwen3").train(), Grove.random(3)
    every = list(range(len(grove.paths)))
    expected = gradients(model, by_packs(grove, model, [every]))
    model.gradient_checkpointing_enable()
    for name, gradient in gradients(model, by_packs(grove, model, [every])).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-12)
    pack = grove.pack(every)
    assert pack.to("meta").subtree_end.device.type == "meta"


def test_a_window_as_long_as_the_longest_path_hides_nothing() -> None:
    grove = Grove.random(0)
    pack = grove.pack(list(range(len(grove.paths))))
    longest = max(len(path.stored) for path in grove.paths)
    assert longest < len(pack.input_ids)
    free = pack.run(tiny_model("mistral", sliding_window=None))
    for window, equal in ((longest, True), (WINDOW, False)):
        output = pack.run(tiny_model("mistral", sliding_window=window))
        assert torch.equal(output.logprob, free.logprob) == equal
        assert set(pack._attention._blocks) == {Span()} | (set() if equal else {Span(window)})


def test_blocks_of_rows_end_after_leaves_or_at_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trunk of 3 rows, then branches of 4, 4 and 10: two branches share a block only if both fit into it."""
    monkeypatch.setattr(attention_module, "_QUERY_BLOCK", 8)
    ends = torch.tensor([21] * 3 + [7] * 4 + [11] * 4 + [21] * 10, dtype=torch.int32)
    positions = torch.tensor([*range(3), *range(3, 7), *range(3, 7), *range(3, 13)])
    attention = attention_module.TreeAttention(ends, positions)
    assert [(rows.start, rows.stop) for rows, _, _ in attention.blocks()] == [(0, 7), (7, 11), (11, 19), (19, 21)]
    assert [mask.shape[1] for _, _, mask in attention.blocks()] == [7, 7, 11, 13]
