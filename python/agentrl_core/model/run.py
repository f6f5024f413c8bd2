"""Run a pack on a model: through the model's own forward, with its output layer on the rows of prediction pairs alone.

The model's forward runs inside the call of its wrappers (`model.call`). In place of the forward of the output layer
stands one that first takes the rows that predict, so that no other logits are made. Whatever the model does to its
logits after that, it does as always.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import (
    LogitFormula,
    causal_model_of,
    decoder_of,
    device_of,
    head_of,
    is_plain_linear,
    logit_formula_of,
)
from agentrl_core.model.attention import SequenceAttention
from agentrl_core.model.call import Forward, call_in_place, head_replaced, leave_uncompiled
from agentrl_core.model.layouts import is_recomputed, layout_of, pad_instead
from agentrl_core.model.logit_statistics import ANSWERS_OF_LOGITS
from agentrl_core.model.ranks import refuse_unwrapped, wrapping_of
from agentrl_core.model.scores import LOGITS_AT_ONCE, VALUES, in_chunks, score, value_head_of
from agentrl_core.model.transformers_attention import pack_attention

Pack: TypeAlias = Any  # model.pack.Pack, whose module uses this one


class Feed(NamedTuple):
    """One forward of the model.

    Attributes:
        arguments: of the forward.
        rows: `int64[n]`, the rows of its flattened hidden states that are read.
        pairs: `int64[n]`, the prediction pairs that these rows belong to; None: all of them in order.
    """

    arguments: dict[str, Any]
    rows: Tensor
    pairs: Tensor | None


class Reading:
    """What is read at the output layer while a pack runs; the base makes the hidden states themselves."""

    def __init__(self, pack: Pack, outer: nn.Module, inner: nn.Module, rows: Tensor) -> None:
        self.pack, self.outer, self.inner, self.rows = pack, outer, inner, rows
        self.head, self.wrapping = head_of(inner), wrapping_of(outer)
        self.states: list[Tensor] = []

    def at_head(self, own: Forward, states: Tensor, *, is_last: bool) -> Tensor:  # noqa: ARG002
        """Return the output of the head for the states `[n, H]` of a feed."""
        self.states.append(states)
        return cast("Tensor", own(states[None, :0]))

    def behind_head(self, logits: Tensor | None, feed: Feed) -> None:
        """Take the logits of a feed, behind all that the model does to them."""

    def results(self, output: Tensor, order: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """Return tensors in the order of the pairs, given the last output of the head."""
        return (in_order(self.states, order),)


class Scores(Reading):
    """Log-probs, entropies and answers of the model's logits, feed by feed."""

    def __init__(self, pack: Pack, outer: nn.Module, inner: nn.Module, outputs: tuple[str, ...]) -> None:
        super().__init__(pack, outer, inner, pack.source_row)
        self.of_logits = tuple(name for name in outputs if name in ANSWERS_OF_LOGITS)
        self.of_values = tuple(name for name in outputs if name in VALUES)
        self.critic = value_head_of(outer, inner, outputs)
        self.found: list[tuple[Tensor, ...]] = []
        self.values: list[Tensor] = []
        self.wide: torch.dtype = torch.float32
        self.scored = functools.partial(score, entropy_gradient=pack.entropy_gradient, outputs=self.of_logits)

    def at_head(self, own: Forward, states: Tensor, *, is_last: bool) -> Tensor:  # noqa: ARG002
        """As in the base."""
        self.wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        self._value(states)
        return cast("Tensor", self._logits(own)(states))[None]

    def _value(self, states: Tensor) -> None:
        if self.critic is not None:
            with torch.autocast(states.device.type, enabled=False):
                self.values.append(self.critic(states.to(next(self.critic.parameters()).dtype)).to(self.wide))

    def _logits(self, own: Forward) -> Forward:
        """From states to logits: those of a plain head in fp32 at least, those of another as its module makes them."""
        head = self.head
        if not is_plain_linear(head) or getattr(own, "__func__", None) is not nn.Linear.forward:
            return lambda states: own(states[None])[0].to(self.wide)
        linear = cast("nn.Linear", head)
        weight = linear.weight.to(self.wide)
        bias = None if linear.bias is None else linear.bias.to(self.wide)  # type: ignore[redundant-expr]  # Linear(bias=False)

        def made(states: Tensor) -> Tensor:
            with torch.autocast(states.device.type, enabled=False):
                return nn.functional.linear(states.to(self.wide), weight, bias)

        return made

    def behind_head(self, logits: Tensor | None, feed: Feed) -> None:
        """Score the logits of a feed."""
        if logits is None or logits.dim() != 3 or logits.shape[:2] != (1, len(feed.rows)):
            raise UnsupportedError(
                f"model: {type(self.inner).__name__} returns no logits for the rows that its output layer was given, "
                "so packs cannot run on it; use another model"
            )
        target, scale = (
            column if feed.pairs is None else column.index_select(0, feed.pairs)
            for column in (self.pack.target, self.pack.streams.inverse_temperature)
        )
        with torch.autocast(logits.device.type, enabled=False):
            size = max(1, LOGITS_AT_ONCE // logits.shape[-1])
            self.found.append(in_chunks(self.scored, size, (logits[0].to(self.wide), target, scale)))

    def results(self, output: Tensor, order: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """As in the base: log-prob, entropy, answers of logits, values."""
        found = [in_order(parts, order) for parts in zip(*self.found, strict=True)]
        return (*found, *self._values(order))

    def _values(self, order: Tensor | None) -> tuple[Tensor, ...]:
        return (in_order(self.values, order),) if self.values else ()

    def fields(self, results: tuple[Tensor, ...]) -> dict[str, Any]:
        """Return the fields of `PackOutput` that these results are."""
        logprob, entropy, *others = results
        said: dict[str, Any] = dict(zip(self.of_logits, others, strict=False))
        if self.of_values:
            said |= {name: others[-1] if name == "value_logits" else others[-1].squeeze(-1) for name in self.of_values}
        return {"logprob": logprob, "entropy": entropy, "ranks": self.wrapping.ranks, **said}


class ChunkedScores(Scores):
    """The same, computed at the head chunk by chunk, so that the logits are never there at once.

    For models whose formula from the head's output to logits is known.
    """

    def __init__(
        self, pack: Pack, outer: nn.Module, inner: nn.Module, outputs: tuple[str, ...], formula: LogitFormula
    ) -> None:
        super().__init__(pack, outer, inner, outputs)
        self.formula = formula
        self.whole: tuple[Tensor, ...] = ()

    def at_head(self, own: Forward, states: Tensor, *, is_last: bool) -> Tensor:
        """Score all rows at the last feed; the scores stand for the logits, so that hooks of the head see them."""
        self.wide = torch.float64 if states.dtype == torch.float64 else torch.float32
        self._value(states)
        self.states.append(states)
        if not is_last:
            return cast("Tensor", own(states[None, :0]))
        return self._at_last(own, in_order(self.states, self.order))

    order: Tensor | None = None

    def _at_last(self, own: Forward, states: Tensor) -> Tensor:
        logits = self._logits(own)

        def scored(part: Tensor, target: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
            return self.scored(self._behind(logits(part)), target, scale)

        size = max(1, LOGITS_AT_ONCE // vocabulary_of(self.inner))
        columns = (states, self.pack.target, self.pack.streams.inverse_temperature)
        self.whole = in_chunks(scored, size, columns)
        return torch.stack([each.to(self.wide) for each in self.whole])[None]

    def _behind(self, logits: Tensor) -> Tensor:
        logits = logits * self.formula.factor
        cap = self.formula.softcap
        return logits if cap is None else cap * (logits / cap).tanh()

    def behind_head(self, logits: Tensor | None, feed: Feed) -> None:
        """Nothing: what the model makes of scores means nothing."""

    def results(self, output: Tensor, order: Tensor | None) -> tuple[Tensor, ...]:
        """As in the base."""
        rows = output[0].unbind(0)
        found = [row.to(whole.dtype) for row, whole in zip(rows, self.whole, strict=True)]
        if not self.pack.entropy_gradient:
            found[1] = found[1].detach()
        return (*found, *self._values(order))


class FusedLoss(ChunkedScores):
    """The loss of a pack, made at a plain head with its gradients, without logits."""

    def __init__(
        self, pack: Pack, outer: nn.Module, inner: nn.Module, fuse: Callable[..., Any], formula: LogitFormula
    ) -> None:
        super().__init__(pack, outer, inner, (), formula)
        self.fuse = fuse
        self.made: Any = None

    def _at_last(self, own: Forward, states: Tensor) -> Tensor:
        if not is_plain_linear(self.head) or getattr(own, "__func__", None) is not nn.Linear.forward:
            raise UnsupportedError(
                f"loss: the output layer of {type(self.inner).__name__} is {type(self.head).__name__}, which has no "
                "one weight to fuse a loss with; use pack.run(model)"
            )
        head, every = cast("nn.Linear", self.head), torch.arange(len(states), device=states.device)
        with torch.autocast(states.device.type, enabled=False):
            self.made = self.fuse(
                states,
                head.weight,
                replace(self.pack, source_row=every),
                bias=head.bias,
                factor=self.formula.factor,
                softcap=self.formula.softcap,
            )
        return cast("Tensor", self.made.loss).reshape(1, 1, 1)

    def results(self, output: Tensor, order: Tensor | None) -> tuple[Tensor, ...]:  # noqa: ARG002
        """The loss, a scalar."""
        return (output.reshape(()),)


def hidden_states(pack: Pack, model: nn.Module) -> Tensor:
    """Return the hidden states `[T, H]` of all tokens of a pack, as the output layer gets them."""
    pack, inner = _prepared(pack, model)
    every = torch.arange(len(pack.input_ids), device=pack.input_ids.device)
    return _run(Reading(pack, model, inner, every))[0]


def scores(pack: Pack, model: nn.Module, outputs: tuple[str, ...]) -> dict[str, Any]:
    """Return log-probs, entropies and `outputs` of a pack, fields of `PackOutput`; see `Pack.run`."""
    pack, inner = _prepared(pack, model)
    formula = None
    if len(pack.target) * vocabulary_of(inner) > LOGITS_AT_ONCE:
        formula = logit_formula_of(inner)
    reading = (
        Scores(pack, model, inner, outputs) if formula is None else ChunkedScores(pack, model, inner, outputs, formula)
    )
    return reading.fields(_run(reading))


def fused(pack: Pack, model: nn.Module, fuse: Callable[..., Any]) -> Any:
    """Return the output of a pack with its loss, which `fuse` makes of hidden states; see `loss.run_fused`."""
    pack, inner = _prepared(pack, model)
    formula = logit_formula_of(inner)
    if formula is None:
        raise UnsupportedError(
            f"loss: it is not known how {type(inner).__name__} makes logits of its output layer, so no loss can be "
            "fused with it; use pack.run(model)"
        )
    reading = FusedLoss(pack, model, inner, fuse, formula)
    (value,) = _run(reading)
    return replace(reading.made, loss=value, ranks=reading.wrapping.ranks)


def vocabulary_of(inner: nn.Module) -> int:
    """Return the number of logits of a model."""
    size = getattr(cast("Any", inner).config.get_text_config(), "vocab_size", None)
    return int(size) if size else int(cast("Any", head_of(inner)).weight.shape[0])


def in_order(parts: Any, order: Tensor | None) -> Tensor:
    """Return parts one after the other, in the order of the pairs."""
    whole = parts[0] if len(parts) == 1 else torch.cat(list(parts))
    return cast("Tensor", whole) if order is None else whole.index_select(0, order)


def _prepared(pack: Pack, model: nn.Module) -> tuple[Pack, nn.Module]:
    """The pack on the model's device, and the causal model inside its wrappers."""
    inner = causal_model_of(model)
    leave_uncompiled(model)
    if inner is model:
        refuse_unwrapped(model)
    if pack.shows_images:
        raise UnsupportedError(
            "the pack has rollouts that show images, and a pack gives the model token ids alone, as if there were "
            "none; leave these draws out (batch.select_draws), or run the model yourself, with its images, and "
            "return a PackOutput"
        )
    known = getattr(cast("Any", inner).get_input_embeddings(), "num_embeddings", None)
    if known and pack.input_ids.device.type == "cpu" and pack.largest_token >= known:  # a GPU would end the process
        raise InvalidInputError(
            f"the pack has token {pack.largest_token}, but {type(inner).__name__} knows the tokens 0 to {known - 1}; "
            "give the model whose tokenizer made these rollouts"
        )
    return pack.to(device_of(inner)), inner


def _run(reading: Reading) -> tuple[Tensor, ...]:
    """Run a pack in its layout."""
    pack, inner = reading.pack, reading.inner
    layout = _layout(pack, inner)
    try:
        return _run_as(reading, layout)
    except UnsupportedError as error:
        if pack.layout != "auto" or layout == "padded" or pack.has_forks or reading.wrapping.sharded:
            raise
        pad_instead(inner, str(error))
        again = type(reading).__new__(type(reading))
        again.__dict__.update({**vars(reading), "states": [], "found": [], "values": []})
        results = _run_as(again, "padded")
        reading.__dict__.update(vars(again))
        return results


def _layout(pack: Pack, inner: nn.Module) -> str:
    """The layout that a pack is run in."""
    layout = layout_of(inner, pack.layout)
    if pack.has_forks and layout != "tree":
        raise UnsupportedError(
            f"layout: the pack is a tree, which {type(inner).__name__} cannot run (it runs packs as {layout}); give "
            "update.pack the model, update.pack(layout='auto', model=model), or layout='sequence'"
        )
    if layout != "padded" and torch.is_grad_enabled() and is_recomputed(inner):
        if pack.layout == "auto" and not pack.has_forks:
            return "padded"
        raise UnsupportedError(
            f"layout: layers of {type(inner).__name__} are in torch's CheckpointWrapper, which would recompute them "
            f"with other attention than that of the layout {layout}; call model.gradient_checkpointing_enable(), or "
            "give update.pack layout='padded'"
        )
    return layout


def _run_as(reading: Reading, layout: str) -> tuple[Tensor, ...]:
    pack, inner = reading.pack, reading.inner

    def body(own: Forward, ids: Tensor) -> tuple[Tensor, ...]:
        with ExitStack() as stack:
            if layout == "padded":
                feeds = _padded_feeds(pack, ids[0], reading.rows, one=reading.wrapping.sharded)
            else:
                feeds = [_flat_feed(reading, ids, stack)]
            results = _read(reading, own, feeds)
            if reading.wrapping.sharded:  # FSDP hangs its hooks on the results, and warns of views
                return tuple(each if each._base is None else each.clone() for each in results)  # noqa: SLF001
            return results

    results = call_in_place(reading.outer, inner, body, pack.input_ids[None])
    if layout != "padded":
        _check_layers(pack, inner)
    return results


def _flat_feed(reading: Reading, ids: Tensor, stack: ExitStack) -> Feed:
    """All tokens in one row, with the pack's attention in each layer."""
    attention = reading.pack._attention  # noqa: SLF001 - a part of the pack
    attention.layers = 0
    stack.enter_context(pack_attention(decoder_of(reading.inner)))
    arguments = {"input_ids": ids, "position_ids": reading.pack.position_ids[None], "attention_of_pack": attention}
    return Feed(arguments, reading.rows, None)


def _padded_feeds(pack: Pack, ids: Tensor, rows: Tensor, *, one: bool) -> list[Feed]:
    """Rows of similar length, padded on the right; if `one`, in one feed, since ranks run as many forwards each."""
    sequences = SequenceAttention(pack.cu_seqlens, pack.max_seqlen, share=0.0 if one else None)
    shapes, flat, slots = sequences.buckets
    lengths = pack.cu_seqlens.to(torch.int64).diff()
    of_row = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths)
    slot, feeds, begin = slots.index_select(0, rows), [], 0
    for count, length in shapes:
        members = flat[begin : begin + count * length].view(count, length)
        real = torch.arange(length, device=ids.device) < lengths[of_row[members[:, 0]], None]
        inside = (slot >= begin) & (slot < begin + count * length)
        pairs = inside.nonzero().squeeze(1)
        arguments = {"input_ids": ids[members], "attention_mask": real.to(torch.int64)}
        feeds.append(Feed(arguments, slot.index_select(0, pairs) - begin, pairs))
        begin += count * length
    return feeds


def _read(reading: Reading, own: Forward, feeds: list[Feed]) -> tuple[Tensor, ...]:
    """Run the feeds, and read them at the head."""
    order = None
    if feeds[0].pairs is not None:
        order = torch.cat([cast("Tensor", feed.pairs) for feed in feeds]).argsort()
    if isinstance(reading, ChunkedScores):
        reading.order = order
    output: Tensor | None = None
    for number, feed in enumerate(feeds):

        def at_head(head: Forward, hidden: Tensor, feed: Feed = feed, number: int = number) -> Tensor:
            shape = feed.arguments["input_ids"].shape
            if hidden.shape[:-1] != shape:
                raise UnsupportedError(
                    f"model: the output layer of {type(reading.inner).__name__} gets states of shape "
                    f"{tuple(hidden.shape)} for {tuple(shape)} tokens, so packs cannot run on it; use another model"
                )
            states = hidden.flatten(0, 1).index_select(0, feed.rows)
            return reading.at_head(head, states, is_last=number == len(feeds) - 1)

        with head_replaced(reading.head, at_head) as captured:
            made = _own_forward(own, reading, feed)
            if captured.output is None:  # a library's forward on the instance, such as TRL's, may leave the head out
                reading.pack._attention.layers = 0  # noqa: SLF001 - a part of the pack
                made = _own_forward(functools.partial(type(reading.inner).forward, reading.inner), reading, feed)
        output = captured.output
        if output is None:
            raise UnsupportedError(
                f"model: {type(reading.inner).__name__} does not call its output layer, so packs cannot run on it; use "
                "another model"
            )
        reading.behind_head(getattr(made, "logits", None), feed)
    return reading.results(cast("Tensor", output), order)


def _own_forward(own: Forward, reading: Reading, feed: Feed) -> object:
    try:
        return own(**feed.arguments, use_cache=False, return_dict=True)
    except RuntimeError as error:
        if "DTensor" not in str(error):
            raise
        raise UnsupportedError(
            f"model: the parameters of {type(reading.inner).__name__} lie on several ranks and are not gathered in "
            f"this call ({error}); give pack.run the module that fully_shard or FSDP was applied to last. Tensor "
            "parallel models cannot run packs"
        ) from error


def _check_layers(pack: Pack, inner: nn.Module) -> None:
    layers = getattr(cast("Any", decoder_of(inner)).config, "num_hidden_layers", None)
    used = pack._attention.layers  # noqa: SLF001 - a part of the pack
    if used != layers:
        raise UnsupportedError(
            f"{type(inner).__name__} used the pack's attention in {used} of {layers} layers; the "
            "layouts tree and sequence need softmax attention through transformers' AttentionInterface in every "
            "layer: use layout='padded'"
        )
