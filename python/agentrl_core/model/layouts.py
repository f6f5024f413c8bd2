"""Layouts: how a model computes a pack, and which of them a model supports."""

from __future__ import annotations

import logging
import weakref
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import causal_model_of, entry_of

if TYPE_CHECKING:
    from torch import nn

PackLayout = Literal["auto", "tree", "sequence", "padded"]
"""The ways in which a model computes a pack.

`tree`: every token once. `sequence`: sequence after sequence, without padding. `padded`: rows of similar length, padded
on the right, through the model's ordinary forward. `auto`: the first of these that the model supports.
"""
_log = logging.getLogger(__name__)
_CHOSEN: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
_REFUSED: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()


def check_layout(layout: str) -> None:
    """Raise InvalidInputError if a layout is not one of `PackLayout`."""
    if layout not in get_args(PackLayout):
        raise InvalidInputError(f"layout: {layout!r} is not a layout; use {', '.join(get_args(PackLayout))}")


def layout_of(model: nn.Module, layout: PackLayout = "auto") -> Literal["tree", "sequence", "padded"]:
    """Return the layout in which a model computes packs: `layout`, or for `auto` the first that it supports.

    The choice follows the table of model types in `docs/models.md`, and is logged once per model.

    Args:
        model: a causal language model, bare or wrapped.
        layout: the layout to use.

    Raises:
        InvalidInputError: there is no such layout.
        UnsupportedError: no layout can run the model.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from agentrl_core.model.layouts import layout_of
        >>> sizes = dict(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
        >>> layout_of(LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2)))
        'tree'
    """
    check_layout(layout)
    inner = causal_model_of(model)
    entry = entry_of(_kind(inner))
    if reason := refusal_of(inner):
        raise UnsupportedError(f"model: {type(inner).__name__} cannot run packs: {reason}")
    if layout != "auto":
        if layout not in entry.get("layouts", [layout]):
            reason = entry["reasons"].get(layout, "it was not verified").partition(" use layout=")[0].rstrip(";:")
            raise UnsupportedError(
                f"layout: {type(inner).__name__} cannot run packs in the layout {layout}: {reason}; use "
                f"layout={entry['layouts'][0]!r} or 'auto'"
            )
        return layout
    chosen: Any = next(iter(entry.get("layouts", ["padded"])))
    why = f"the first that was verified for {_kind(inner)!r}"
    if not entry:
        why = f"the type {_kind(inner)!r} is not in the table of verified types"
    if inner in _REFUSED:
        chosen, why = "padded", _REFUSED[inner]
    if _CHOSEN.get(inner) != chosen:
        _CHOSEN[inner] = chosen
        level = logging.WARNING if inner in _REFUSED else logging.INFO
        _log.log(level, "%s runs packs in the layout %s: %s", type(inner).__name__, chosen, why)
    return cast("Literal['tree', 'sequence', 'padded']", chosen)


def refuse_images_in(layout: PackLayout) -> None:
    """Raise UnsupportedError if packs whose rollouts show images cannot be run in a layout."""
    if layout in ("tree", "sequence"):
        raise UnsupportedError(
            f"layout: {layout!r} cannot run images, whose positions and attention the model computes itself; use "
            "layout='padded' or 'auto'"
        )


def refusal_of(inner: nn.Module) -> str | None:
    """Return the reason why no layout can run a model; None if one can."""
    config: Any = cast("Any", inner).config
    entry = entry_of(_kind(inner))
    if entry.get("is_decoder") and not getattr(config, "is_decoder", True):
        return "it sees the tokens after each token; load it with is_decoder=True"
    if config.is_encoder_decoder and not getattr(config, "is_decoder", False):
        return "it is an encoder-decoder model; use its decoder, or a causal language model"
    return f"{entry['refused']}; use a model of docs/models.md" if "refused" in entry else None


def is_recomputed(inner: nn.Module) -> bool:
    """Return whether torch's checkpoint wrapper recomputes layers of a model in the backward pass.

    By then the pack's attention is no longer in place.
    """
    return any(type(module).__name__ == "CheckpointWrapper" for module in inner.modules())


def pad_instead(inner: nn.Module, reason: str) -> None:
    """Make layout `auto` mean `padded` for a model from now on, and log the reason."""
    _REFUSED[inner] = reason
    layout_of(inner)


def _kind(inner: nn.Module) -> str:
    return str(getattr(cast("Any", inner).config, "model_type", ""))
