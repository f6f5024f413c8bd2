"""What a pack asks of a Hugging Face model: its decoder, its output layer, and what becomes of its logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.ranks import refuse_wrapped

# What a config may say that changes logits behind the output layer; each is neutral when absent, None or 1.
_LOGIT_OPTIONS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)
# The types of models of which it is known what they do with such an option: others give the same name other meanings.
_CAPPED = ("gemma2", "gemma3_text", "vaultgemma")
_FACTORS: dict[str, tuple[str, int]] = {  # the option and the power of it that logits are multiplied by
    "cohere": ("logit_scale", 1),
    "cohere2": ("logit_scale", 1),
    "granite": ("logits_scaling", -1),
    "granitemoe": ("logits_scaling", -1),
    "hyperclovax": ("logits_scaling", 1),
}


@dataclass(frozen=True)
class OutputLayer:
    """How logits z are made of hidden states h: z = factor (h W^T + bias), then softcap tanh(z / softcap).

    Attributes:
        linear: W and the bias.
        factor: 1 in most models.
        softcap: None in most models.
    """

    linear: nn.Linear
    factor: float
    softcap: float | None


def decoder_of(model: nn.Module) -> nn.Module:
    """The part of a model that gives hidden states.

    Raises:
        InvalidInputError: it is no module.
        UnsupportedError: it has none, or it is wrapped or sharded for several ranks.
    """
    _require_module(model)
    find = getattr(model, "get_decoder", None)
    decoder = find() if callable(find) else None
    if not isinstance(decoder, nn.Module) or not hasattr(decoder, "config"):
        raise UnsupportedError(
            f"{type(model).__name__} has no get_decoder() that gives a transformers decoder; pass a causal language "
            "model of Hugging Face transformers, such as LlamaForCausalLM"
        )
    return decoder


def output_layer_of(model: nn.Module) -> OutputLayer:
    """The output layer of a model.

    Raises:
        InvalidInputError: the model is no module.
        UnsupportedError: it is no plain linear layer, or logits are changed behind it in a way that is not known.
    """
    _require_module(model)
    find = getattr(model, "get_output_embeddings", None)
    head = find() if callable(find) else None
    if type(head) is not nn.Linear:
        raise UnsupportedError(
            f"{type(model).__name__} has the output layer {type(head).__name__}; pack.run needs a plain "
            "torch.nn.Linear: use a causal language model without an adapter on its head, or pack.forward and "
            "a head of your own"
        )
    config: Any = decoder_of(model).config
    kind = str(getattr(getattr(model, "config", config), "model_type", ""))
    factor, softcap, known = 1.0, None, set()
    if kind in _CAPPED:
        known.add("final_logit_softcapping")
        softcap = config.final_logit_softcapping
    if kind in _FACTORS:
        option, power = _FACTORS[kind]
        known.add(option)
        factor = float(getattr(config, option)) ** power
    for name in _LOGIT_OPTIONS:
        value = getattr(config, name, None)
        if value is not None and value != 1 and name not in known:
            raise UnsupportedError(
                f"{type(model).__name__} has {name}={value}, which changes its logits after the output layer in a way "
                "that is not known here; use pack.forward and a head of your own"
            )
    return OutputLayer(head, factor, softcap)


def _require_module(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"model is {model!r}; give a torch.nn.Module, such as what AutoModelForCausalLM.from_pretrained returns"
        )
    refuse_wrapped(model)
