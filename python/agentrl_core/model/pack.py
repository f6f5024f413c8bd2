"""Pack: the flat tensors of one forward and backward pass, and how a model runs over them.

The tokens of several sequences lie one after the other, without padding. The language-model head sees one row per
*prediction pair* (source row, target token), and there are pairs for trained tokens only: prompts, tool results and
padding never reach it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import decoder_of, output_layer_of
from agentrl_core.model.attention import Attention, SequenceAttention, TreeAttention
from agentrl_core.model.lm_head import folded
from agentrl_core.model.logit_statistics import ANSWERS_OF_LOGITS
from agentrl_core.model.transformers_attention import pack_attention

if TYPE_CHECKING:
    from agentrl_core._core import PlannedPack
    from agentrl_core.operators.packing import TreeRows

_LOGITS_AT_ONCE = 2**27  # 512 MiB of fp32; beyond it the head runs in chunks that the backward pass recomputes


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
            raise AttributeError(f"the pack has no stream {name!r}; it has: {', '.join(self) or 'none'}") from None


class RowLoss(Protocol):
    """What an output asks of a loss: its value and metrics on the vectors of some rows."""

    def of_rows(
        self, logprob: Tensor, entropy: Tensor, streams: Mapping[str, Tensor], outputs: object, /
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, a scalar, and detached sums over the trained rows."""


@dataclass(frozen=True, eq=False)
class PackOutput:
    """What a model says about the prediction pairs of a pack.

    Attributes:
        logprob: `[N]`, log-prob of each target at the temperature it was sampled with; fp32, or fp64 for an fp64 model.
        entropy: `[N]`, entropy in nats of the distribution it was drawn from.
        value: `[N]`, or `[N, k]` of k heads: what the model's value head says before the token is generated.
        value_logits: `[N, bins]`, the same of a categorical value head.
        top_p_entropy: `[N]`, `answers.top_p_entropy` of that distribution.
        mean_logprob: `[N]`, mean over the vocabulary of its log-probs.
        sum_probability_squared: `[N]`, sum over the vocabulary of its squared probabilities.
        max_logprob: `[N]`, log-prob of the likeliest token.
        likeliest: `int64[N]`, that token.
        soft_value: `[N]`, `answers.soft_value` of the logits.
        full_kl: `[N]`, `answers.full_kl` to another model; `Pack.run` knows one model, so it is yours to add.
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

    def evaluated(self, loss: RowLoss, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:
        """Value and metrics of a loss on this output of `pack`. Nothing is copied to the host."""
        streams = pack.to(self.logprob.device).streams
        return loss.of_rows(self.logprob, self.entropy, streams, self)


@dataclass(frozen=True, eq=False)
class Pack:
    """Tensors of one forward and backward pass: T tokens in S sequences or trees, N prediction pairs.

    Attributes:
        input_ids: `int64[T]`, the tokens of all sequences.
        position_ids: `int64[T]`, position of each token in its sequence.
        cu_seqlens: `int32[S + 1]`, where each sequence or tree starts, then T.
        max_seqlen: length of the longest of them.
        source_row: `int64[N]`, the row among the T hidden states that predicts.
        target: `int64[N]`, the token that was generated there.
        token: `int64[N]`, index of the pair in the batch's level `token`: of the first token that it stands for.
        node_token: `int64[N]`, index of the pair in the batch's level `node_token`.
        subtree_end: `int32[T]` in the tree layout, where row q attends to row k if and only if k <= q < subtree_end[k];
            None where the sequences lie one after the other.
        pair_offsets: `int64[N + 1]`: pair i stands for the tokens `pair_tokens[pair_offsets[i]:pair_offsets[i + 1]]`.
            None: each stands for its own.
        pair_tokens: `int64[M]`, indices in the batch's level `token`; `token` is the first of each pair.
        streams: `float32[N]` each, ids of segments `int64[N]` from 0 without gaps. `inverse_temperature` is always
            there; an update adds what its loss needs.
        entropy_gradient: whether `PackOutput.entropy` can be differentiated; without, a run needs less memory.
        outputs: what a run gives beside log-probs and entropies, names of `PackOutput`.
        shows_images: whether images were in sight when a token of it was sampled.
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
    shows_images: bool = False
    _copies: dict[torch.device, Pack] = field(default_factory=dict, repr=False)

    @classmethod
    def from_plan(
        cls,
        plan: PlannedPack,
        streams: Mapping[str, NDArray[Any]],
        *,
        entropy_gradient: bool = True,
        outputs: tuple[str, ...] = (),
        shows_images: bool = False,
    ) -> Pack:
        """Make the tensors of a planned pack.

        Args:
            plan: one pack of `Batch.plan`.
            streams: `[N]` arrays by name, aligned with `plan.token`.
            entropy_gradient: see the class.
            outputs: see the class.
            shows_images: see the class.
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
            shows_images=shows_images,
        )

    @classmethod
    def from_tree(cls, tree: TreeRows, *, entropy_gradient: bool = True, outputs: tuple[str, ...] = ()) -> Pack:
        """Make the tensors of rows of tokens as trees, which are those of no batch, at temperature 1.

        Args:
            tree: what `packing.tree_layout` made; `token` and the places of pairs are those in its given tokens.
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
            node_token=torch.full_like(token, -1),  # stored nowhere
            subtree_end=_tensor(tree.subtree_end),
            pair_offsets=_tensor(tree.pair_offsets),
            pair_tokens=_tensor(tree.pair_tokens),
            streams=Streams({"inverse_temperature": torch.ones(len(token)), **streams}),
            entropy_gradient=entropy_gradient,
            outputs=outputs,
        )

    def to(self, device: torch.device | str) -> Pack:
        """The pack on `device`: itself if it is there, else a copy, made once."""
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
        """Who attends to whom: made once for all models and layers.

        Trees without forks are sequences, which need no mask.
        """
        if self.subtree_end is not None and self._has_forks:
            return TreeAttention(self.subtree_end, self.position_ids)
        return SequenceAttention(self.cu_seqlens, self.max_seqlen)

    @property
    def _has_forks(self) -> bool:
        """Whether a tree has a fork: behind it a row has fewer rows before it on its path than in its tree."""
        lengths = self.cu_seqlens.to(torch.int64).diff()
        begins = self.cu_seqlens[:-1].repeat_interleave(lengths)
        rows = torch.arange(len(self.position_ids), device=self.position_ids.device)
        return not torch.equal(self.position_ids, rows - begins)

    def to_tokens(self, values: Tensor, out: NDArray[Any]) -> None:
        """Write one value of each pair to all the action tokens that the pair stands for.

        `Batch.locate_tokens` says which draw and step a token belongs to.

        Args:
            values: `[N]`, such as `PackOutput.logprob`; gradients stay behind.
            out: an array with a value for each action token of the batch; tokens of other packs keep theirs.

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
        found = values.detach().cpu().numpy()
        if self.pair_offsets is None or self.pair_tokens is None:
            out[self.token.cpu().numpy()] = found
        else:
            out[self.pair_tokens.cpu().numpy()] = np.repeat(found, np.diff(self.pair_offsets.cpu().numpy()))

    def forward(self, model: nn.Module) -> Tensor:
        """Hidden states of all tokens, `[T, hidden]`, on the model's device; gradients flow.

        Every token attends to those before it in its sequence, or on its path, in layers with a sliding window to the
        last of them, so the result equals separate runs.

        Args:
            model: a causal language model of Hugging Face transformers, decoder-only, in train or eval mode: Llama,
                Qwen 2 and 3, Mistral, Gemma 1 to 3 and others with softmax attention in every layer, be it all of it
                causal, in sliding windows, or with soft caps.

        Raises:
            UnsupportedError: the model has no decoder, or other attention in some layer (attention sinks, chunks,
                linear attention); it is wrapped or sharded for several ranks; the pack shows images.
            InvalidInputError: the pack has tokens that the model does not know.
        """
        decoder = decoder_of(model)
        if self.shows_images:
            raise UnsupportedError(
                "the pack has rollouts that show images, and a pack gives the model token ids alone, as if there were "
                "none; leave these draws out (batch.select_draws), or run the model yourself, with its images, and "
                "return a PackOutput"
            )
        self._refuse_foreign(decoder)
        pack = self.to(_device(model))
        attention = pack._attention  # noqa: SLF001 - a pack of its own kind
        attention.layers = 0
        with pack_attention(decoder):
            output = decoder(
                input_ids=pack.input_ids[None],
                position_ids=pack.position_ids[None],
                use_cache=False,
                attention_of_pack=attention,
            )
        layers = getattr(decoder.config, "num_hidden_layers", None)
        if attention.layers != layers:
            raise UnsupportedError(
                f"{type(model).__name__} used the pack's attention in {attention.layers} of {layers} layers; "
                "packs need softmax attention through transformers' AttentionInterface in every layer"
            )
        return cast("Tensor", output.last_hidden_state[0])

    def _refuse_foreign(self, decoder: nn.Module) -> None:
        """On a GPU an unknown token ends the process, so it is looked for before the pack goes there."""
        known = cast("Any", decoder).get_input_embeddings().weight.shape[0]
        if self.input_ids.device.type == "cpu" and self._largest >= known:
            raise InvalidInputError(
                f"the pack has token {self._largest}, but {type(decoder).__name__} knows the tokens 0 to {known - 1}; "
                "give the model whose tokenizer made these rollouts"
            )

    @functools.cached_property
    def _largest(self) -> int:
        return max((int(ids.max()) for ids in (self.input_ids, self.target) if len(ids)), default=-1)

    def run(self, model: nn.Module, *, outputs: tuple[str, ...] | None = None) -> PackOutput:
        """Log-prob and entropy of every prediction pair, and what else is asked for.

        With z the fp32 logits (fp64 for an fp64 model) of a pair's source row, behind the factor and the soft cap that
        the model's config may name (`loss.fused` has the formula), times its inverse temperature:
        log p = z_target - lse(z); H = log S - U / S with S = sum e^(z - max z), U = sum e^(z - max z) (z - max z).

        Args:
            model: as for `forward`, with an output layer that is a plain `torch.nn.Linear`. Values come from its module
                `value_head`, from hidden states `[N, hidden]` to `[N, 1]` or `[N, k]`: set
                `model.value_head = torch.nn.Linear(hidden, 1)`.
            outputs: names of `PackOutput` to give beside log-probs and entropies; None: those of the pack.

        Returns:
            `PackOutput` on the model's device.

        Raises:
            UnsupportedError: the model cannot run packs (see `forward`), changes its logits after the output layer in
                another way, or cannot give an answer.
        """
        outputs = self.outputs if outputs is None else outputs
        layer, critic = output_layer_of(model), _value_head(model, outputs)
        of_logits = tuple(name for name in outputs if name in ANSWERS_OF_LOGITS)
        pack = self.to(_device(model))
        hidden = pack.forward(model).index_select(0, pack.source_row)
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        with torch.autocast(hidden.device.type, enabled=False):
            head = layer.linear
            weight = head.weight.to(dtype)
            bias = None if head.bias is None else head.bias.to(dtype)  # type: ignore[redundant-expr]  # Linear(bias=False)
            scale, softcap = folded(pack.streams.inverse_temperature, layer.factor, layer.softcap)
            chunk = max(1, _LOGITS_AT_ONCE // weight.shape[0])
            score = functools.partial(
                _score, softcap=softcap, entropy_gradient=self.entropy_gradient, outputs=of_logits
            )
            chunks = []
            for begin in range(0, max(len(hidden), 1), chunk):
                rows = slice(begin, begin + chunk)
                arguments = (
                    hidden[rows].to(dtype),
                    weight,
                    bias,
                    pack.target[rows],
                    scale[rows],
                )
                if len(hidden) > chunk and torch.is_grad_enabled():
                    chunks.append(checkpoint(score, *arguments, use_reentrant=False))
                else:
                    chunks.append(score(*arguments))
            more = {}
            if critic is not None:
                value = critic(hidden.to(next(critic.parameters()).dtype)).to(dtype)
                more = {
                    name: value if name == "value_logits" else value.squeeze(-1) for name in outputs if name in _VALUES
                }
        logprob, entropy, *others = (torch.cat(parts) for parts in zip(*chunks, strict=True))
        said = dict(zip(of_logits, others, strict=True))
        if "soft_value" in said:
            said["soft_value"] = said["soft_value"] / pack.streams.inverse_temperature.to(dtype)
        return PackOutput(logprob=logprob, entropy=entropy, **more, **said)


def _score(
    rows: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    scale: Tensor,
    *,
    softcap: float | None,
    entropy_gradient: bool,
    outputs: tuple[str, ...],
) -> tuple[Tensor, ...]:
    logits = nn.functional.linear(rows, weight, bias)
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    logits = logits * scale[:, None].to(rows.dtype)
    largest = logits.detach().amax(dim=-1, keepdim=True)
    shifted = logits - largest
    logprob = shifted.gather(1, target[:, None]).squeeze(1) - shifted.logsumexp(dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        exponential = shifted.exp()
        total = exponential.sum(dim=-1)
        entropy = total.log() - (exponential * shifted).sum(dim=-1) / total
    others = (ANSWERS_OF_LOGITS[name](shifted) for name in outputs)  # all but one are the same of shifted logits
    moved = {"soft_value": largest.squeeze(1)}
    return logprob, entropy, *(other + moved.get(name, 0) for name, other in zip(outputs, others, strict=True))


_VALUES = ("value", "value_logits")
ANSWERS = (*_VALUES, *ANSWERS_OF_LOGITS)
"""What `Pack.run` gives beside log-probs and entropies, where it is asked for."""


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def _value_head(model: nn.Module, outputs: tuple[str, ...]) -> nn.Module | None:
    """The head behind `value` and `value_logits`, if one of them is asked for."""
    for name in outputs:
        if name not in ANSWERS:
            raise UnsupportedError(
                f"pack.run cannot give the answer {name!r}, only {', '.join(ANSWERS)}; compute it and add it: "
                f"dataclasses.replace(pack.run(model, answers=()), {name}=...)"
            )
    asked = next((name for name in outputs if name in _VALUES), None)
    head = getattr(model, "value_head", None)
    if asked is not None and not isinstance(head, nn.Module):
        raise UnsupportedError(
            f"{type(model).__name__} has no value head for the answer {asked!r}; give it one: model.value_head = "
            "torch.nn.Linear(model.config.hidden_size, 1)"
        )
    return cast("nn.Module", head) if asked is not None else None
