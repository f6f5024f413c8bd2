"""Run a pack on a model, by the model's own forward; the output layer gets only the rows of prediction pairs.

The model's forward runs inside the call of its wrappers (`model.replaced_forward`). During that call the forward of the
output layer is replaced by one that reads only the rows that predict a token, so that no other logits are computed. The
model's own operations on logits after the output layer (scales, soft caps) are unchanged.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, TypeVar, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import causal_model_of, decoder_of, device_of, logit_formula_of
from agentrl_core.model.attention import SequenceAttention
from agentrl_core.model.comparisons import TeacherRows
from agentrl_core.model.images import takes_images
from agentrl_core.model.layouts import is_recomputed, layout_of, pad_instead, refuse_images_in
from agentrl_core.model.matmul import fast_linear_layers
from agentrl_core.model.output_layer import (
    LOGITS_AT_ONCE,
    ChunkedScores,
    Feed,
    FusedLoss,
    Pack,
    Reading,
    Scores,
    vocabulary_of,
)
from agentrl_core.model.pack_images import ShownImages, check_images
from agentrl_core.model.ranks import refuse_unwrapped
from agentrl_core.model.replaced_forward import Forward, call_in_place, head_replaced, is_compiled, leave_uncompiled
from agentrl_core.model.route_replay import RouteReplay, replayed_routes
from agentrl_core.model.transformers_attention import pack_attention

_AnyReading = TypeVar("_AnyReading", bound=Reading)
_LEAVE_HEAD_OUT: WeakSet[nn.Module] = WeakSet()
"""Models whose forward a library such as TRL has replaced by one that does not call the output layer."""


def hidden_states(pack: Pack, model: nn.Module) -> Tensor:
    """Return the hidden states `[T, H]` of all tokens of a pack: the inputs of the output layer."""
    pack, inner = _prepared(pack, model)
    every = torch.arange(len(pack.input_ids), device=pack.input_ids.device)
    return _run(pack, inner, lambda: Reading(pack, model, inner, every))[1][0]


def scores(pack: Pack, model: nn.Module, outputs: tuple[str, ...], teacher: nn.Module | None = None) -> dict[str, Any]:
    """Run a model on a pack; return log-probs, entropies and `outputs` by field of `PackOutput`; see `Pack.run`."""
    rows = None if teacher is None else _teacher_rows(pack, teacher)
    pack, inner = _prepared(pack, model)
    if rows is not None:
        rows = rows._replace(states=rows.states.to(pack.target.device))
    is_large = len(pack.target) * vocabulary_of(inner) > LOGITS_AT_ONCE
    formula = logit_formula_of(inner) if is_large else None

    def reading() -> Scores:
        if formula is None:
            return Scores(pack, model, inner, outputs, rows)
        return ChunkedScores(pack, model, inner, outputs, rows, formula)

    finished_reading, results = _run(pack, inner, reading)
    return finished_reading.fields(results)


def _teacher_rows(pack: Pack, teacher: nn.Module) -> TeacherRows:
    """Return the teacher's hidden states for each prediction pair, without gradients and without route replay."""
    pack, inner = _prepared(replace(pack, routed_experts=None), teacher)
    with torch.no_grad():
        reading, (states,) = _run(pack, inner, lambda: Reading(pack, teacher, inner, pack.source_row))
    if reading.wrapping.sharded:
        raise UnsupportedError(
            "teacher: its parameters lie on several ranks; give a whole model, or annotate its top tokens instead: "
            "arl.annotate(batch, 'teacher_logprob', teacher, top_k=64)"
        )
    return TeacherRows(states, inner)


def fused(pack: Pack, model: nn.Module, fuse: Callable[..., Any]) -> Any:
    """Run a model on a pack with a loss that `fuse` computes from the hidden states; see `loss.run_fused`."""
    pack, inner = _prepared(pack, model)
    formula = logit_formula_of(inner)
    if formula is None:
        raise UnsupportedError(
            f"loss: it is not known how {type(inner).__name__} makes logits of its output layer, so no loss can be "
            "fused with it; use pack.run(model)"
        )
    reading, (value,) = _run(pack, inner, lambda: FusedLoss(pack, model, inner, fuse, formula))
    return replace(reading.made, loss=value, ranks=reading.wrapping.ranks)


def _prepared(pack: Pack, model: nn.Module) -> tuple[Pack, nn.Module]:
    """Check that a model can run a pack; return the pack on the model's device, and the inner causal model."""
    inner = causal_model_of(model)
    leave_uncompiled(model)
    if inner is model:
        refuse_unwrapped(model)
    if pack.images is not None or takes_images(inner):
        check_images(pack, inner)
    known = getattr(cast("Any", inner).get_input_embeddings(), "num_embeddings", None)
    if known and pack.input_ids.device.type == "cpu" and pack.largest_token >= known:  # a GPU would abort
        raise InvalidInputError(
            f"the pack has token {pack.largest_token}, but {type(inner).__name__} knows the tokens 0 to {known - 1}; "
            "give the model whose tokenizer made these rollouts"
        )
    return pack.to(device_of(inner)), inner


def _run(
    pack: Pack, inner: nn.Module, new_reading: Callable[[], _AnyReading]
) -> tuple[_AnyReading, tuple[Tensor, ...]]:
    """Run a pack in its layout; return the reading and its results.

    If the layout that `auto` selected turns out to be unsupported, it runs again with a `new_reading`.
    """
    layout = _layout(pack, inner)
    reading = new_reading()
    try:
        return reading, _run_as(reading, layout)
    except UnsupportedError as error:
        if pack.layout != "auto" or layout == "padded" or pack.has_forks or reading.wrapping.sharded:
            raise
        pad_instead(inner, str(error))
    reading = new_reading()
    return reading, _run_as(reading, "padded")


def _layout(pack: Pack, inner: nn.Module) -> str:
    """Return the layout in which a pack is run on a model."""
    if pack.images is not None and pack.images.hashes:
        refuse_images_in(pack.layout)
        return "padded"
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

    def body(model_forward: Forward, ids: Tensor) -> tuple[Tensor, ...]:
        wrapping = reading.wrapping
        shown_images = None
        if pack.images is not None or takes_images(inner):
            shown_images = ShownImages(pack.images, inner, ranks=wrapping.ranks, sharded=wrapping.sharded)
        with ExitStack() as stack:
            if layout == "padded":
                feeds = _padded_feeds(pack, ids[0], reading.rows, shown_images, one=wrapping.sharded)
            else:
                feeds = [_flat_feed(reading, ids, stack)]
            replay = None
            if pack.routed_experts is not None:
                replay = stack.enter_context(replayed_routes(pack.routed_experts, inner))
            if not is_compiled(reading.outer):
                stack.enter_context(fast_linear_layers(inner, ids.numel(), but=reading.head))  # the head may be fused
            results = _read(reading, model_forward, feeds, replay)
            if shown_images is not None:
                results = shown_images.joined(results)
            if wrapping.sharded:  # FSDP registers hooks on the results, and warns about views
                return tuple(each if each._base is None else each.clone() for each in results)  # noqa: SLF001
            return results

    results = call_in_place(reading.outer, inner, body, pack.input_ids[None])
    if layout != "padded":
        _check_layers(pack, inner)
    return results


def _flat_feed(reading: Reading, ids: Tensor, stack: ExitStack) -> Feed:
    """Return the forward call for layouts without padding: all tokens in one row, with the pack's attention."""
    attention = reading.pack._attention  # noqa: SLF001 - a part of the pack
    attention.layers = 0
    stack.enter_context(pack_attention(decoder_of(reading.inner)))
    arguments = {"input_ids": ids, "position_ids": reading.pack.position_ids[None], "attention_of_pack": attention}
    return Feed(arguments, reading.rows, None)


def _padded_feeds(pack: Pack, ids: Tensor, rows: Tensor, shown_images: ShownImages | None, *, one: bool) -> list[Feed]:
    """Return forward calls on rows of similar length, padded on the right.

    With `one`, all rows are in one call, because all ranks must run equally many.
    """
    sequences = SequenceAttention(pack.cu_seqlens, pack.max_seqlen, share=0.0 if one else None)
    shapes, flat, slots = sequences.buckets
    lengths = pack.cu_seqlens.to(torch.int64).diff()
    of_row = torch.repeat_interleave(torch.arange(len(lengths), device=ids.device), lengths)
    slot, feeds, begin = slots.index_select(0, rows), [], 0
    for count, length in shapes:
        members = flat[begin : begin + count * length].view(count, length)
        sequence = of_row[members[:, 0]]
        real = torch.arange(length, device=ids.device) < lengths[sequence, None]
        inside = (slot >= begin) & (slot < begin + count * length)
        pairs = inside.nonzero().squeeze(1)
        arguments = {"input_ids": ids[members], "attention_mask": real.to(torch.int64)}
        if shown_images is not None:
            arguments |= shown_images.arguments(arguments["input_ids"], real, sequence)
        feeds.append(Feed(arguments, slot.index_select(0, pairs) - begin, pairs, members))
        begin += count * length
    return feeds


def _read(
    reading: Reading, model_forward: Forward, feeds: list[Feed], replay: RouteReplay | None
) -> tuple[Tensor, ...]:
    """Run the forward calls one after the other, and return the results of the reading."""
    if feeds[0].pairs is not None:
        reading.order = torch.cat([cast("Tensor", feed.pairs) for feed in feeds]).argsort()
    output: Tensor | None = None
    for number, feed in enumerate(feeds):
        if replay is not None:
            replay.feed(feed.tokens)
        output = _read_feed(reading, model_forward, feed, is_last=number == len(feeds) - 1)
    return reading.results(cast("Tensor", output))


def _read_feed(reading: Reading, model_forward: Forward, feed: Feed, *, is_last: bool) -> Tensor:
    """Run one forward call, and return the output of the head."""
    inner, shape = reading.inner, feed.arguments["input_ids"].shape

    def at_head(head: Forward, hidden: Tensor, *_: object, **__: object) -> Tensor:
        if hidden.shape[:-1] != shape:
            raise UnsupportedError(
                f"model: the output layer of {type(inner).__name__} gets states of shape {tuple(hidden.shape)} for "
                f"{tuple(shape)} tokens, so packs cannot run on it; use a model of docs/models.md"
            )
        states = hidden.flatten(0, 1).index_select(0, feed.rows)
        return reading.at_head(head, states, is_last=is_last)

    class_forward = functools.partial(type(inner).forward, inner)
    with head_replaced(reading.head, at_head) as captured:
        output = _own_forward(class_forward if inner in _LEAVE_HEAD_OUT else model_forward, reading, feed)
        if captured.output is None:
            _LEAVE_HEAD_OUT.add(inner)
            reading.pack._attention.layers = 0  # noqa: SLF001 - a part of the pack
            output = _own_forward(class_forward, reading, feed)
    if captured.output is None:
        raise UnsupportedError(
            f"model: {type(inner).__name__} does not call its output layer, so packs cannot run on it; use a "
            "model of docs/models.md"
        )
    reading.after_model(getattr(output, "logits", None), feed)
    return captured.output


def _own_forward(model_forward: Forward, reading: Reading, feed: Feed) -> object:
    try:
        return model_forward(**feed.arguments, use_cache=False, return_dict=True)
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
