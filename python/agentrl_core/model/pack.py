"""Packs: the flat tensors of one forward and backward pass, and methods that run a model on them.

The tokens of several sequences lie one after the other, without padding. The language-model head gets one row per
*prediction pair* (source row, target token), and there are pairs for trained tokens only: prompts, tool results and
padding never reach it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agentrl_core.model.attention import Attention, SequenceAttention, TreeAttention
from agentrl_core.model.compressed_arrays import ShortArray
from agentrl_core.model.layouts import PackLayout

if TYPE_CHECKING:
    from agentrl_core._core import PlannedPack
    from agentrl_core.model.pack_images import PackImages
    from agentrl_core.operators.packing import TreeRows


class Streams(dict[str, Tensor]):
    """The token columns of a pack by name, `float32[N]` each, ids `int64[N]`; a name is also an attribute.

    Example:
        >>> import torch
        >>> from agentrl_core.model.pack import Streams
        >>> Streams(old_logprob=torch.zeros(2)).old_logprob.tolist()
        [0.0, 0.0]
    """

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"the pack has no stream {name!r} (it has: {', '.join(self) or 'none'}); declare it in needs "
                "of the loss, and take the pack from an update of this loss"
            ) from None


class RowLoss(Protocol):
    """Interface of losses that are computed from vectors of log-probs and entropies."""

    def of_rows(
        self, logprob: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], outputs: object, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss, a scalar, and detached sums of metrics over the trained rows."""


@dataclass(frozen=True, eq=False)
class PackOutput:
    """Outputs of a model for the prediction pairs of a pack.

    Attributes:
        logprob: `[N]`, log-prob of each target at the temperature it was sampled with; fp32, or fp64 for an fp64 model.
        entropy: `[N]`, entropy in nats of the distribution it was drawn from.
        value: `[N]`, or `[N, k]` for k heads: output of the model's value head before the token is generated.
        value_logits: `[N, bins]`, output of a categorical value head.
        top_p_entropy: `[N]`, `answers.top_p_entropy` of that distribution.
        mean_logprob: `[N]`, mean over the vocabulary of its log-probs.
        sum_probability_squared: `[N]`, sum over the vocabulary of its squared probabilities.
        max_logprob: `[N]`, log-prob of the likeliest token.
        likeliest: `int64[N]`, the likeliest token.
        soft_value: `[N]`, `answers.soft_value` of the logits.
        full_kl: `[N]`, `answers.full_kl` to another model; `Pack.run` has one model, so the caller must set it.
        top_logprobs: `[N, k + 1]`, log-probs of the tokens in a stream of ids (output `top_logprobs:<stream>`), and of
            all others together.
        divergence: `[N]`, divergence from the teacher over the vocabulary (output `divergence:<beta>`); see
            `loss.Divergence`.
        likeliest_tokens: `[N, 2 k]`, log-probs of the k likeliest tokens, then their ids (`likeliest_tokens:<k>`).
        ranks: number of ranks over which the model's wrapper averages gradients; 1 without a wrapper; None: unknown.
    """

    logprob: Tensor
    entropy: Tensor
    value: Tensor | None = None
    value_logits: Tensor | None = None
    top_p_entropy: Tensor | None = None
    mean_logprob: Tensor | None = None
    sum_probability_squared: Tensor | None = None
    max_logprob: Tensor | None = None
    likeliest: Tensor | None = None
    soft_value: Tensor | None = None
    full_kl: Tensor | None = None
    top_logprobs: Tensor | None = None
    divergence: Tensor | None = None
    likeliest_tokens: Tensor | None = None
    ranks: int | None = None

    def evaluated(self, loss: RowLoss, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """Return value and metrics of a loss on this output of `pack`, without copies to the host."""
        streams = pack.to(self.logprob.device).streams
        return loss.of_rows(self.logprob, self.entropy, streams, self)


@dataclass(frozen=True, eq=False)
class Pack:
    """Tensors of one forward and backward pass: T tokens in S sequences or trees, N prediction pairs.

    Attributes:
        input_ids: `int64[T]`, the tokens of all sequences.
        position_ids: `int64[T]`, position of each token in its sequence.
        cu_seqlens: `int32[S + 1]`, the start of each sequence or tree, then T.
        max_seqlen: length of the longest sequence or tree.
        source_row: `int64[N]`, the row among the T hidden states from which the target is predicted.
        target: `int64[N]`, the token that was generated after that row.
        token: `int64[N]`, index in the batch's level `token` of the first token of each pair.
        node_token: `int64[N]`, index of the pair in the batch's level `node_token`.
        subtree_end: `int32[T]` in the tree layout, where row q attends to row k if and only if k <= q < subtree_end[k];
            None if the sequences lie one after the other.
        pair_offsets: `int64[N + 1]`: pair i covers the tokens `pair_tokens[pair_offsets[i]:pair_offsets[i + 1]]`.
            None: each pair covers its own token only.
        pair_tokens: `int64[M]`, indices in the batch's level `token`; `token` is the first of each pair.
        streams: `float32[N]` each, ids of segments `int64[N]` from 0 without gaps. `inverse_temperature` is always
            there; an update adds what its loss needs.
        entropy_gradient: whether `PackOutput.entropy` can be differentiated; otherwise a run needs less memory.
        outputs: names of the fields of `PackOutput` to compute besides log-probs and entropies.
        images: the images of its sequences, whose features a run computes once each; None: no images.
        routed_experts: `int16[T, layers * k]`, the experts to which each token is routed; negative: chosen by the
            model's routers. None: all are chosen by the routers.
        layout: how a model computes the pack: `tree`, `sequence` or `padded`; `auto`: the first of them that the model
            supports (`model.layouts.layout_of`).
    """

    input_ids: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    source_row: Tensor
    target: Tensor
    token: Tensor
    node_token: Tensor
    streams: Streams
    subtree_end: Tensor | None = None
    pair_offsets: Tensor | None = None
    pair_tokens: Tensor | None = None
    entropy_gradient: bool = True
    outputs: tuple[str, ...] = ()
    images: PackImages | None = None
    routed_experts: Tensor | None = None
    layout: PackLayout = "auto"
    _copies: dict[torch.device, Pack] = field(default_factory=dict, repr=False)

    @classmethod
    def from_plan(
        cls,
        plan: PlannedPack,
        streams: Mapping[str, NDArray[Any]],
        *,
        entropy_gradient: bool = True,
        outputs: tuple[str, ...] = (),
        images: PackImages | None = None,
        routed_experts: NDArray[np.int16] | None = None,
        layout: PackLayout = "auto",
    ) -> Pack:
        """Create the pack of a plan, with the given streams.

        Args:
            plan: one pack of `Batch.plan`.
            streams: `[N]` arrays by name, aligned with `plan.token`.
            entropy_gradient: see the class.
            outputs: see the class.
            images: see the class.
            routed_experts: see the class.
            layout: see the class.
        """
        return cls(
            input_ids=_tensor(plan.input_ids),
            position_ids=_tensor(plan.position_ids),
            cu_seqlens=_tensor(plan.cu_seqlens),
            max_seqlen=int(plan.max_seqlen),
            source_row=_tensor(plan.source_row),
            target=_tensor(plan.target),
            token=_tensor(plan.token),
            node_token=_tensor(plan.node_token),
            subtree_end=_tensor(plan.subtree_end) if plan.layout == "tree" else None,
            pair_offsets=_tensor(plan.pair_offsets),
            pair_tokens=_tensor(plan.pair_tokens),
            streams=Streams({name: _tensor(values) for name, values in streams.items()}),
            entropy_gradient=entropy_gradient,
            outputs=outputs,
            images=images,
            routed_experts=None if routed_experts is None else _tensor(routed_experts),
            layout=layout,
        )

    @classmethod
    def from_tree(cls, tree: TreeRows, *, entropy_gradient: bool = True, outputs: tuple[str, ...] = ()) -> Pack:
        """Create a pack from token rows laid out as trees, without a batch, at temperature 1.

        Args:
            tree: output of `packing.tree_layout`; `token` and `pair_tokens` are indices into the tokens given to it.
            entropy_gradient: see the class.
            outputs: see the class.

        Example:
            >>> from agentrl_core.model.pack import Pack
            >>> from agentrl_core.operators.packing import tree_layout
            >>> pack = Pack.from_tree(tree_layout([5, 6, 7, 5, 6, 8], [0, 3, 6]))
            >>> pack.input_ids.tolist(), pack.target.tolist()
            ([5, 6], [6, 7, 8])
        """
        token = _tensor(tree.token)
        streams = {name: _tensor(values) for name, values in tree.streams.items()}
        return cls(
            input_ids=_tensor(tree.input_ids),
            position_ids=_tensor(tree.position_ids),
            cu_seqlens=_tensor(tree.cu_seqlens),
            max_seqlen=int(np.diff(tree.cu_seqlens).max(initial=0)),
            source_row=_tensor(tree.source_row),
            target=_tensor(tree.target),
            token=token,
            node_token=torch.full_like(token, -1),  # the tokens are not stored in a batch
            subtree_end=_tensor(tree.subtree_end),
            pair_offsets=_tensor(tree.pair_offsets),
            pair_tokens=_tensor(tree.pair_tokens),
            streams=Streams({"inverse_temperature": torch.ones(len(token)), **streams}),
            entropy_gradient=entropy_gradient,
            outputs=outputs,
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of the pack in few bytes, to send it to another process."""
        state = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "_copies"}
        state["streams"] = {name: _short(values) for name, values in self.streams.items()}
        return {name: _short(value) if isinstance(value, Tensor) else value for name, value in state.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        streams = Streams({name: _tensor(short.whole()) for name, short in state.pop("streams").items()})
        expanded = {
            name: _tensor(value.whole()) if isinstance(value, ShortArray) else value for name, value in state.items()
        }
        self.__dict__.update(expanded, streams=streams, _copies={})

    def to(self, device: torch.device | str) -> Pack:
        """Return the pack on a device: itself if it is there already, otherwise a cached copy."""
        target = torch.device(device)
        if target == self.input_ids.device:
            return self
        if target not in self._copies:
            moved: dict[str, Any] = {
                name: value.to(target, non_blocking=True)
                for name, value in vars(self).items()
                if isinstance(value, Tensor)
            }
            streams = Streams({name: value.to(target, non_blocking=True) for name, value in self.streams.items()})
            self._copies[target] = replace(self, **moved, streams=streams, _copies={})
        return self._copies[target]

    @functools.cached_property
    def _attention(self) -> Attention:
        """The attention between the tokens, planned once for all models and layers.

        Trees without forks are sequences, which need no mask.
        """
        if self.subtree_end is not None and self.has_forks:
            return TreeAttention(self.subtree_end, self.position_ids)
        return SequenceAttention(self.cu_seqlens, self.max_seqlen)

    @functools.cached_property
    def has_forks(self) -> bool:
        """True if a tree has a fork: a row whose path is shorter than the number of rows up to it in its tree."""
        if self.subtree_end is None:
            return False
        lengths = self.cu_seqlens.to(torch.int64).diff()
        begins = self.cu_seqlens[:-1].repeat_interleave(lengths)
        rows = torch.arange(len(self.position_ids), device=self.position_ids.device)
        return not torch.equal(self.position_ids, rows - begins)

    def as_sequences(self) -> Pack:
        """Return the pack with every path from a root to a leaf as a sequence, for models that cannot run trees.

        Shared tokens are repeated in each path, so the pack has more tokens. Each prediction pair is kept once, in the
        first path that contains it.

        Example:
            >>> from agentrl_core.model.pack import Pack
            >>> from agentrl_core.operators.packing import tree_layout
            >>> pack = Pack.from_tree(tree_layout([5, 6, 7, 5, 8, 7], [0, 3, 6])).as_sequences()
            >>> pack.input_ids.tolist(), pack.cu_seqlens.tolist(), pack.target.tolist()
            ([5, 6, 5, 8], [0, 2, 4], [6, 7, 8, 7])
        """
        if self.subtree_end is None:
            return self
        ends, rows = self.subtree_end.to("cpu", torch.int64), torch.arange(len(self.input_ids))
        leaves = (ends == rows + 1).nonzero().squeeze(1)
        paths = [rows[: leaf + 1][ends[: leaf + 1] > leaf] for leaf in leaves]
        flat = torch.cat([rows[:0], *paths])
        offsets = torch.tensor([0, *map(len, paths)]).cumsum(0)
        place = torch.full((len(rows),), -1)
        place[flat.flip(0)] = torch.arange(len(flat)).flip(0)  # the first occurrence of each row
        device = self.input_ids.device
        return replace(
            self,
            input_ids=self.input_ids[flat.to(device)],
            position_ids=self.position_ids[flat.to(device)],
            cu_seqlens=offsets.to(device, torch.int32),
            max_seqlen=max(map(len, paths), default=0),
            source_row=place[self.source_row.cpu()].to(device),
            routed_experts=None if self.routed_experts is None else self.routed_experts[flat.to(device)],
            subtree_end=None,
            _copies={},
        )

    def to_tokens(self, values: Tensor, out: NDArray[Any]) -> None:
        """Write the value of each prediction pair to all action tokens that the pair covers.

        `Batch.locate_tokens` returns the draw and step of each token.

        Args:
            values: `[N]`, such as `PackOutput.logprob`; they are detached.
            out: an array with a value for each action token of the batch; values of other packs' tokens stay unchanged.

        Example:
            >>> import numpy as np
            >>> import torch
            >>> from agentrl_core.model.pack import Pack, Streams
            >>> none, two = torch.zeros(0, dtype=torch.int64), torch.tensor([0, 2])
            >>> pack = Pack(
            ...     none, none, none, 0, none, none, token=two, node_token=two, streams=Streams(),
            ...     pair_offsets=torch.tensor([0, 2, 3]), pair_tokens=torch.tensor([0, 3, 2]),
            ... )
            >>> column = np.zeros(5, dtype=np.float32)
            >>> pack.to_tokens(torch.tensor([0.5, 0.25]), column)
            >>> column.tolist()
            [0.5, 0.0, 0.25, 0.5, 0.0]
        """
        numbers = values.detach().cpu().numpy()
        if self.pair_offsets is None or self.pair_tokens is None:
            out[self.token.cpu().numpy()] = numbers
        else:
            out[self.pair_tokens.cpu().numpy()] = np.repeat(numbers, np.diff(self.pair_offsets.cpu().numpy()))

    def forward(self, model: nn.Module) -> Tensor:
        """Return the hidden states of all tokens, `[T, hidden]`: the inputs of the output layer, with gradients.

        Every token attends to the tokens before it in its sequence or on its path, limited by the sliding window or
        chunk of a layer, so the result equals separate runs of the sequences.

        Args:
            model: as for `run`.

        Raises:
            UnsupportedError: as for `run`.
            InvalidInputError: the pack has tokens outside of the model's vocabulary.
        """
        from agentrl_core.model.pack_forward import hidden_states

        return hidden_states(self, model)

    @functools.cached_property
    def largest_token(self) -> int:
        """The largest token id of the pack; -1 without tokens."""
        return max((int(ids.max()) for ids in (self.input_ids, self.target) if len(ids)), default=-1)

    def run(
        self, model: nn.Module, *, outputs: tuple[str, ...] | None = None, teacher: nn.Module | None = None
    ) -> PackOutput:
        """Run a model on the pack; return log-prob and entropy of every prediction pair, and `outputs`.

        With z the logits of a pair's source row as the model makes them (its factors and soft caps included; a plain
        `torch.nn.Linear` head computes them in fp32, or fp64 for an fp64 model), times its inverse temperature:
        log p = z_target - lse(z); H = log S - U / S with S = sum e^(z - max z), U = sum e^(z - max z) (z - max z).

        The model itself is called, so its wrappers act as usual: DDP and FSDP synchronise gradients, adapters are
        applied, and layers to which torch.compile was applied run compiled.

        Args:
            model: a causal language model of Hugging Face transformers, in train or eval mode, bare or in its wrappers
                (DistributedDataParallel, FSDP, fully_shard, PEFT, torch.compile, Accelerate). Its output layer may have
                adapters or be quantised. Values come from its module `value_head`, from hidden states `[N, hidden]` to
                `[N, 1]` or `[N, k]`: set `model.value_head = torch.nn.Linear(hidden, 1)` before it is wrapped.
            outputs: names of `PackOutput` to return besides log-probs and entropies; None: those of the pack.
            teacher: the model that `loss.Divergence(support="vocabulary")` distils, in eval mode and whole on this
                process. It runs without gradients; its logits and the policy's are compared in chunks.

        Returns:
            `PackOutput` on the model's device.

        Raises:
            UnsupportedError: no layout, or not the pack's, can run the model; a wrapper changes what the model returns;
                the model cannot compute an output.
            InvalidInputError: the pack has tokens outside of the model's vocabulary.
        """
        from agentrl_core.model.pack_forward import scores

        return PackOutput(**scores(self, model, self.outputs if outputs is None else outputs, teacher))


def _short(values: Tensor) -> ShortArray:
    return ShortArray.of(values.cpu().numpy())


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
