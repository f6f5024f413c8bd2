"""Weights for `update_weights`: under the engine's names, compared with what it has before anything is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor, nn

_WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that torch.compile, FSDP and activation checkpointing add, wherever they wrap."""
_OF_ADAPTERS = ("lora_", "modules_to_save", "ia3_", "vera_", "trainable_tokens")
_UNUSED = "value_head."
"""The head that `pack.run` reads; no engine samples from it."""
_SHOWN = 3

Layout = Mapping[str, tuple[int, ...]]
"""The shape of each weight, by its name."""


def check_version(version: object) -> None:
    """Refuse what is no version of weights.

    Raises:
        InvalidInputError: it is no whole number of at least 0.
    """
    if isinstance(version, bool) or not isinstance(version, Integral) or not 0 <= int(version) < 1 << 63:
        raise InvalidInputError(f"update_weights: version is {version!r}; give a whole number of at least 0")


def plain_name(name: str) -> str:
    """Return the name that a weight has in the model itself, without the prefixes of wrappers.

    Example:
        >>> from agentrl_core.engine.weights import plain_name
        >>> plain_name("module._orig_mod.model.norm.weight")
        'model.norm.weight'
    """
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while parts[:1] == ["module"]:
        del parts[0]
    if parts[:2] == ["base_model", "model"]:  # PEFT
        del parts[:2]
    return ".".join(parts)


def unwrapped(model: Any) -> Any:
    """Return the model inside the wrappers that torch.compile and data parallelism put around it."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel", "DeepSpeedEngine"):
            inner = model.module
        if inner is None:
            return model
        model = inner


def is_adapted(model: Any) -> bool:
    """Whether a model is one of PEFT, with adapters beside its weights."""
    return any(_of_adapter(name) for name, _ in model.named_parameters())


def state_of(model: nn.Module, layout: Layout | None = None) -> dict[str, Tensor]:
    """Return the parameters and buffers of a model by their plain names, those of merged adapters in place.

    Args:
        model: what is trained, in whatever wrappers.
        layout: of the engine, which may have adapters itself; None: it has none.

    Raises:
        InvalidInputError: it has adapters that are not merged.
    """
    return _plain(model, dict(model.state_dict()), layout)


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the same of the parameters alone, weights that are tied once.

    Raises:
        InvalidInputError: it has adapters that are not merged.
    """
    return _plain(model, {name: parameter.detach() for name, parameter in model.named_parameters()}, None)


def check_weights(weights: Mapping[str, Tensor], layout: Layout | None) -> None:
    """Refuse weights that an engine cannot take, or should not.

    Args:
        weights: by their plain names.
        layout: of the engine; None: it is not known.

    Raises:
        InvalidInputError: a name is missing or unknown, a shape or a kind of numbers is another, a value is not finite.
    """
    keeps = "nothing was changed, and the engine goes on with the weights that it has"
    if layout is not None:
        missing, unknown = sorted(layout.keys() - weights.keys()), sorted(weights.keys() - layout.keys())
        if missing or unknown:
            raise InvalidInputError(
                f"update_weights: the model does not fit this engine's: it {_named('lacks', missing)}"
                f"{' and ' * bool(missing and unknown)}{_named('has', unknown)}; give the model of the engine's "
                f"checkpoint, without wrappers; {keeps}"
            )
        for name, shape in layout.items():
            if tuple(weights[name].shape) != tuple(shape):
                raise InvalidInputError(
                    f"update_weights: the model does not fit this engine's: {name!r} has shape "
                    f"{tuple(weights[name].shape)}, and the engine's has {tuple(shape)}; {keeps}"
                )
    for name, weight in weights.items():
        if weight.is_meta or not weight.is_floating_point():
            if layout is not None and name.endswith((".weight", ".bias")):
                raise InvalidInputError(
                    f"update_weights: {name!r} is {'on the device meta' if weight.is_meta else weight.dtype}; give "
                    f"floating point weights that are in memory; {keeps}"
                )
        elif not bool(weight.isfinite().all()):
            raise InvalidInputError(
                f"update_weights: {name!r} holds NaN or infinity; load the last checkpoint that is finite; {keeps}"
            )


def layout_of(model: nn.Module) -> Layout:
    """Return the shapes that an engine's own model has."""
    named = ((plain_name(name), tensor) for name, tensor in model.state_dict().items())
    return {name: tuple(tensor.shape) for name, tensor in named if not name.startswith(_UNUSED)}


def layout_of_config(path: str, **options: Any) -> Layout | None:
    """Return the shapes of the parameters that a checkpoint's config asks for; None: transformers does not know."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    causal: Any = AutoModelForCausalLM
    try:
        config = AutoConfig.from_pretrained(path, **options)
        with torch.device("meta"):
            model = causal.from_config(config, **options)
    except (OSError, ValueError, KeyError, ImportError):
        return None
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def layout_of_folder(folder: str | Path) -> Layout | None:
    """Return the shapes that the files of a checkpoint say they hold; None: there are no safetensors files."""
    layout: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        layout |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return layout or None


def _plain(model: Any, named: Mapping[str, Tensor], layout: Layout | None) -> dict[str, Tensor]:
    weights = {plain_name(name): weight for name, weight in named.items()}
    weights = {name: weight for name, weight in weights.items() if not name.startswith(_UNUSED)}
    sharded = next((name for name, weight in weights.items() if type(weight).__name__ == "DTensor"), None)
    if sharded is not None:
        raise InvalidInputError(
            f"update_weights: {sharded!r} is sharded over ranks; give a model with whole weights, such as one that "
            "torch.distributed.checkpoint.state_dict.get_model_state_dict filled with full_state_dict=True"
        )
    adapters = [name for name in weights if _of_adapter(name)]
    if not adapters or (layout is not None and adapters[0] in layout):
        return weights
    layers = [layer for layer in getattr(model, "modules", list)() if hasattr(layer, "base_layer")]
    if not layers or not all(getattr(layer, "merged", False) for layer in layers):
        raise InvalidInputError(
            f"update_weights: the model has adapters ({adapters[0]!r}) that are not merged into its weights; call "
            "model.merge_adapter() before and model.unmerge_adapter() after, or give a copy that "
            "merge_and_unload() made; nothing was changed, and the engine goes on with the weights that it has"
        )
    return {name.replace(".base_layer.", "."): weight for name, weight in weights.items() if not _of_adapter(name)}


def _of_adapter(name: str) -> bool:
    return any(part.startswith(_OF_ADAPTERS) for part in name.split("."))


def _named(verb: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{verb} {', '.join(map(repr, names[:_SHOWN]))}{more}" if names else ""
