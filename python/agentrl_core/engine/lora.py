"""PEFT layers: merge their weights in a copy, or read only an adapter."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError

_PEFT_MODULES = ("base_layer", "modules_to_save", "original_module", "token_adapter")
"""Module names that PEFT's wrappers add; in a full state dict, the weights of every adapter have one of them."""
_LORA_PARTS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B")


def names_adapter(name: str) -> bool:
    """Return whether a weight of this name belongs to an adapter, or to a layer that PEFT wrapped."""
    return any(part in _PEFT_MODULES or part.startswith(_prefixes()) for part in name.split("."))


@cache
def _prefixes() -> tuple[str, ...]:
    """Return the name prefixes of adapter weights from PEFT's registry; without PEFT, those of LoRA."""
    try:
        from peft.mapping import PEFT_TYPE_TO_PREFIX_MAPPING
    except ImportError:
        return ("lora_",)
    return tuple(PEFT_TYPE_TO_PREFIX_MAPPING.values())


def is_adapted(model: nn.Module) -> bool:
    """Return whether PEFT put adapters into a model."""
    if "peft" not in sys.modules:
        return False
    return any(adapter_layer(part) is not None or module_in_use(part) is not part for part in model.modules())


def module_in_use(module: nn.Module) -> nn.Module:
    """Return the module that PEFT uses in place of a wrapped one, or the module itself if it is not wrapped."""
    kind = _peft_class("utils.other", "AuxiliaryTrainingWrapper")
    if kind is None or not isinstance(module, kind):
        return module
    wrapper: Any = module
    if hasattr(wrapper, "token_adapter"):  # a layer of the tuner TrainableTokens
        return wrapper.token_adapter  # type: ignore[no-any-return]
    active = list(wrapper.active_adapters)
    if wrapper.disable_adapters or not active or active[0] not in wrapper.modules_to_save:
        return wrapper.original_module  # type: ignore[no-any-return]
    return wrapper.modules_to_save[active[0]]  # type: ignore[no-any-return]


def adapter_layer(module: nn.Module) -> Any:
    """Return the module if it is a layer with adapters, otherwise None."""
    kind = _peft_class("tuners.tuners_utils", "BaseTunerLayer")
    is_layer = kind is not None and isinstance(module, kind) and hasattr(module, "get_base_layer")
    return module if is_layer and hasattr(module, "base_layer") else None


def differs_from_base(layer: Any) -> bool:
    """Return whether the weights that a layer with adapters uses differ from those stored in its base layer."""
    return any(
        bool(each.merged) if each.disable_adapters else any(n not in each.merged_adapters for n in each.active_adapters)
        for each in _layers_in(layer)
    )


def adapter_states(model: nn.Module) -> list[tuple[bool, tuple[str, ...]]]:
    """Return for each layer with adapters whether they are disabled, and which are active."""
    return [(each.disable_adapters, tuple(each.active_adapters)) for each in _layers_in(model)]


def _layers_in(layer: nn.Module) -> list[Any]:
    """Return the layers with adapters in a module, including the module itself."""
    return [part for part in layer.modules() if adapter_layer(part) is not None]


def merged_weights(layer: Any, names: Iterable[str], full_tensor: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Return the weights of a base layer with its adapters merged in a copy; the layer does not change.

    Half precision is merged in fp32 and rounded once.

    Raises:
        InvalidInputError: the base layer is quantised, or this kind of adapter cannot be merged.
    """
    base = layer.get_base_layer()
    dtypes = {name: parameter.dtype for name, parameter in base.named_parameters()}
    rounded = [name for name, dtype in dtypes.items() if not dtype.is_floating_point]
    if rounded:
        raise InvalidInputError(
            f"update_weights: parameter {rounded[0]!r} of a {type(base).__name__} with adapters is quantised "
            f"({dtypes[rounded[0]]}), so adapters cannot be merged into it exactly; give a model whose base weights "
            "are floating point"
        )
    layer_copy = _detached_copy(layer, lambda tensor: _fp32_copy(full_tensor(tensor)))
    try:
        for each in _layers_in(layer_copy)[::-1]:
            if each.disable_adapters:
                each.unmerge()
            else:
                each.merge()
    except (
        NotImplementedError,
        AttributeError,
        ValueError,
        RuntimeError,
    ) as error:  # PEFT's, of kinds that cannot merge
        raise InvalidInputError(
            f"update_weights: the adapters of {type(layer).__name__} cannot be merged into its weights ({error}); use "
            "LoRA or DoRA"
        ) from error
    parameters = dict(layer_copy.get_base_layer().named_parameters())
    return [parameters[name].detach().to(dtypes[name]) for name in names]


def lora_tensors(layer: Any) -> dict[str, tuple[Mapping[str, Any], str, float]]:
    """Return where to find each tensor of a LoRA layer's active adapter, by checkpoint name: table, key, factor.

    The layer's scaling is multiplied into B, so that the adapter is applied with a scaling of 1.
    """
    [adapter] = layer.active_adapters
    places: dict[str, tuple[Mapping[str, Any], str, float]] = {}
    for part in _LORA_PARTS:
        by_adapter: Any = getattr(layer, part, {})
        if adapter in by_adapter:
            factor = float(layer.scaling[adapter]) if part.endswith("_B") else 1.0
            if isinstance(by_adapter, nn.ModuleDict):
                places[f"{part}.weight"] = by_adapter[adapter]._parameters, "weight", factor  # noqa: SLF001 - looked up later
            else:
                places[part] = by_adapter._parameters, adapter, factor  # noqa: SLF001
    return places


def reason_to_merge(model: nn.Module) -> str | None:
    """Return why a vLLM engine cannot hold a model's adapters separately from its weights; None if it can."""
    lora = _peft_class("tuners.lora", "LoraLayer")
    for name, part in model.named_modules():
        if module_in_use(part) is not part:
            return f"{name} is replaced by a trained copy or trained tokens"
        layer = adapter_layer(part)
        if layer is None:
            continue
        if lora is None or not isinstance(part, lora) or not isinstance(layer.get_base_layer(), _ADAPTABLE):
            return f"{name} is a {type(part).__name__}"
        active = list(layer.active_adapters)
        if len(active) != 1 or layer.disable_adapters or layer.merged:
            state = f"{len(active)} active adapters"
            if len(active) == 1:
                state = "a disabled adapter" if layer.disable_adapters else "a merged adapter"
            return f"{name} has {state}"
        if active[0] not in (*layer.lora_A, *layer.lora_embedding_A):
            return f"{name} does not have the adapter {active[0]!r}"
        if active[0] in layer.lora_variant:
            return f"{name} has LoRA of the kind {type(layer.lora_variant[active[0]]).__name__}"
        if layer.lora_bias.get(active[0]) or getattr(layer, "fan_in_fan_out", False):
            return f"{name} has {'an adapter with a bias' if layer.lora_bias.get(active[0]) else 'a transposed weight'}"
    return None


_ADAPTABLE = (nn.Linear, nn.Embedding)


def _detached_copy(module: nn.Module, full_tensor: Callable[[Tensor], Tensor]) -> Any:
    """Return a copy of a module with its own tensors and without hooks."""
    kind: type[Any] = type(module)
    if kind.__mro__[1].__name__ == "FSDPModule":  # the class that fully_shard puts before the module's own
        kind = kind.__mro__[2]
    clone = object.__new__(kind)
    for name, value in vars(module).items():
        if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
            clone.__dict__[name] = OrderedDict()
        elif name != "forward":
            clone.__dict__[name] = copy.copy(value) if isinstance(value, (list, dict, set)) else value
    parts: dict[str, tuple[Mapping[str, Any], Callable[[Any], Any]]] = {
        "_parameters": (module._parameters, lambda each: nn.Parameter(full_tensor(each), requires_grad=False)),  # noqa: SLF001
        "_buffers": (module._buffers, full_tensor),  # noqa: SLF001
        "_modules": (module._modules, lambda each: _detached_copy(each, full_tensor)),  # noqa: SLF001
    }
    for name, (table, convert) in parts.items():
        clone.__dict__[name] = {key: None if each is None else convert(each) for key, each in table.items()}
    return clone


def _fp32_copy(tensor: Tensor) -> Tensor:
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.float()
    return tensor.clone()


def _peft_class(module: str, name: str) -> Any:
    """Return a class of PEFT; None if PEFT is not imported, so that no model has adapters."""
    return getattr(sys.modules.get(f"peft.{module}"), name, None)
