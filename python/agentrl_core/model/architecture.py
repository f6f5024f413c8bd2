"""Find the parts of a causal language model of Hugging Face: the model in its wrappers, its decoder, its head."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, cast

from torch import nn

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError

# Config options that change logits after the output layer; each is neutral when absent, None or 1.
_LOGIT_OPTIONS = (
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
    "logits_mup_width_multiplier",
)
# Model types for which the meaning of these options is known; other types use the same names differently.
_CAPPED = ("gemma2", "gemma3_text", "vaultgemma")
_FACTORS: dict[str, tuple[str, int]] = {  # the option and the power of it that logits are multiplied by
    "cohere": ("logit_scale", 1),
    "cohere2": ("logit_scale", 1),
    "granite": ("logits_scaling", -1),
    "granitemoe": ("logits_scaling", -1),
    "hyperclovax": ("logits_scaling", 1),
}
# Composite types of vision and language models, whose logits are those of their output layer.
_PLAIN = ("gemma3", "idefics3", "internvl", "llava_onevision", "qwen2_5_vl", "qwen3_vl", "smolvlm")


@dataclass(frozen=True)
class LogitFormula:
    """The map from the head's output z to logits: factor z, then softcap tanh(factor z / softcap).

    Attributes:
        factor: 1 in most models.
        softcap: None in most models.
    """

    factor: float = 1.0
    softcap: float | None = None


def causal_model_of(model: nn.Module) -> nn.Module:
    """Return the causal language model inside its wrappers (DDP, FSDP, PEFT, torch.compile): itself if it has none.

    Raises:
        InvalidInputError: `model` is not a module.
        UnsupportedError: it contains no causal language model of transformers, or several, or it is a wrapper that
            copies the model for each call.
    """
    if not isinstance(model, nn.Module):
        raise InvalidInputError(
            f"model is {model!r}; give a torch.nn.Module, such as what AutoModelForCausalLM.from_pretrained returns"
        )
    try:
        from transformers import PreTrainedModel
    except ImportError as error:
        raise MissingDependencyError(
            "pack.run needs the package transformers to run a model; pip install 'agentrl-core[torch]'"
        ) from error
    if type(model).__name__ == "DataParallel":
        raise UnsupportedError(
            "model: DataParallel copies the model for each call, so packs cannot run in it; use "
            "DistributedDataParallel or fully_shard, one process for each GPU"
        )
    models: list[nn.Module] = []
    _collect(model, PreTrainedModel, models, set())
    if not models:
        raise UnsupportedError(
            f"model: {type(model).__name__} contains no Hugging Face model with an output layer; give a causal "
            "language model such as LlamaForCausalLM, bare or in its wrapper"
        )
    if len(models) > 1:
        raise UnsupportedError(
            f"model: {type(model).__name__} contains {len(models)} language models "
            f"({', '.join(type(each).__name__ for each in models)}); give one of them"
        )
    return models[0]


def _collect(module: nn.Module, kind: type[Any], found: list[nn.Module], seen: set[nn.Module]) -> None:
    """Append to `found` the outermost modules of a kind that have an output layer."""
    if module in seen:
        return
    seen.add(module)
    if isinstance(module, kind) and cast("Any", module).get_output_embeddings() is not None:
        found.append(module)
        return
    for child in module.children():
        _collect(child, kind, found, seen)


def decoder_of(model: nn.Module) -> nn.Module:
    """Return the part of a causal language model that computes hidden states.

    Raises:
        UnsupportedError: it has none.
    """
    decoder = cast("Any", model).get_decoder()
    if not isinstance(decoder, nn.Module) or not hasattr(decoder, "config"):
        raise UnsupportedError(
            f"{type(model).__name__}.get_decoder() returns a {type(decoder).__name__} instead of a transformers "
            "decoder, which packs of the layouts tree and sequence need; use layout='padded'"
        )
    return decoder


def head_of(model: nn.Module) -> nn.Module:
    """Return the output layer of a causal language model, adapters on it included."""
    return cast("nn.Module", cast("Any", model).get_output_embeddings())


def is_plain_linear(head: nn.Module) -> bool:
    """Return whether an output layer is a `torch.nn.Linear` with its class's forward and an unquantised weight."""
    from torch import Tensor

    return (
        isinstance(head, nn.Linear)
        and type(head).forward is nn.Linear.forward
        and type(head.weight.data) in (Tensor, nn.Parameter)
    )


def unusual_head(head: nn.Module) -> str:
    """Describe how an output layer differs from a plain linear layer, for messages."""
    if not isinstance(head, nn.Linear):
        return f"a {type(head).__module__}.{type(head).__name__}"
    if type(head).forward is not nn.Linear.forward:
        return f"a {type(head).__name__} with its own forward"
    if is_plain_linear(head):
        return f"a {type(head).__name__} with a replaced forward"
    return f"a {type(head).__name__} with weights of type {type(head.weight.data).__name__}"


def logit_formula_of(model: nn.Module) -> LogitFormula | None:
    """Return the formula from the output of a model's head to its logits; None if it is not known.

    It is known for the types of the table of causal types whose head was verified, and for those listed above.
    """
    config: Any = cast("Any", model).config
    text = config.get_text_config()
    kind = str(getattr(config, "model_type", ""))
    formula, known = None, set()
    if kind in _CAPPED:
        known.add("final_logit_softcapping")
        formula = LogitFormula(softcap=text.final_logit_softcapping)
    elif kind in _FACTORS:
        option, power = _FACTORS[kind]
        known.add(option)
        formula = LogitFormula(factor=float(getattr(text, option)) ** power)
    elif kind in _PLAIN or entry_of(kind).get("plain_logits"):
        formula = LogitFormula()
    for name in _LOGIT_OPTIONS:
        value = getattr(text, name, None)
        if value is not None and value != 1 and name not in known:
            return None
    return formula


def device_of(model: nn.Module) -> Any:
    """Return the device of the first parameter of a model."""
    return next(model.parameters()).device


@functools.cache
def causal_types() -> dict[str, dict[str, Any]]:
    """Return the results of bench/causal_types.py (verified layouts, reasons, errors) by `config.model_type`."""
    text = resources.files(__package__).joinpath("causal_types.json").read_text(encoding="utf-8")
    types: dict[str, dict[str, Any]] = json.loads(text)["types"]
    # For composite types only the text model was built; the composite model itself is not verified.
    return {kind: entry for kind, entry in types.items() if entry.get("model_type") == kind}


def entry_of(kind: str) -> dict[str, Any]:
    """Return the entry of a model type in `causal_types`; empty if it has none."""
    return causal_types().get(kind, {})
