"""The layout of an engine's weights, and checks that a policy's weights match it before anything changes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentrl_core.engine.lora import names_adapter
from agentrl_core.engine.policy_weights import Part, PolicyWeights, plain_name
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.output_layer import VALUE_HEAD

_SHOWN = 3
_KEEPS = "nothing was changed"


@dataclass(frozen=True)
class EngineLayout:
    """Names, shapes and ties of an engine's weights.

    Attributes:
        shapes: shape of each weight, by its name.
        floating: names of the floating-point weights.
        tied: for each tied weight, the name of the weight that it is tied to.
    """

    shapes: Mapping[str, tuple[int, ...]]
    floating: frozenset[str]
    tied: Mapping[str, str]

    @property
    def is_adapted(self) -> bool:
        """True if the engine's own model has adapters, which are then replaced without merging."""
        return any(map(names_adapter, self.shapes))


def part_for(layout: EngineLayout | None) -> Part:
    """Return which part of a policy's weights an engine loads: `stored` if it has adapters, otherwise `merged`."""
    return "stored" if layout is not None and layout.is_adapted else "merged"


def check_weights(weights: PolicyWeights, layout: EngineLayout | None, part: Part | None = None) -> None:
    """Refuse weights that do not match an engine's layout, or are not finite.

    Args:
        weights: weights of the policy.
        layout: layout of the engine; None if it is unknown.
        part: the part of the weights; None: the part that the layout needs.

    Raises:
        InvalidInputError: a name is missing or unknown, a shape or kind of dtype differs, a value is not finite,
            weights that the engine ties are not equal, or a state dict has adapters.
    """
    part = part_for(layout) if part is None else part
    names = weights.names(part)
    if weights.model is None and part == "merged" and weights.is_adapted:
        name = next(filter(names_adapter, names))
        raise InvalidInputError(
            f"update_weights: the state dict has adapters ({name!r}), which are merged with the help of their model; "
            f"give the model, or the state dict of a copy that merge_and_unload() made ({_KEEPS})"
        )
    if layout is not None:
        _check_names(names, layout)
    tied_there = [] if layout is None else _tied_in_engine_only(weights, names, layout)
    tied_weights: dict[str, Tensor] = {}
    for name, weight in weights.read(part):
        _check_shape_and_kind(name, weight, layout)
        known = weight.float() if weight.itemsize == 1 else weight  # torch cannot check 8-bit floats for NaN
        if weight.is_floating_point() and not bool(known.isfinite().all()):
            raise InvalidInputError(
                f"update_weights: {name!r} holds NaN or infinity; load the last checkpoint that is finite ({_KEEPS})"
            )
        if any(name in pair for pair in tied_there):
            tied_weights[name] = weight
    for name, other in tied_there:
        if not torch.equal(tied_weights[name], tied_weights[other]):
            raise InvalidInputError(
                f"update_weights: the engine ties {name!r} to {other!r}, but they differ in the given model, as with "
                f"an adapter on one of them; load the engine's model with tie_word_embeddings=False ({_KEEPS})"
            )


def weights_to_load(
    weights: PolicyWeights, layout: EngineLayout | None, part: Part | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that an engine loads; of tied weights only one."""
    part = part_for(layout) if part is None else part
    names = set(weights.names(part))
    tied = weights.tied if layout is None else layout.tied
    for name, weight in weights.read(part):
        source = tied.get(name, name)
        if source == name or source not in names:
            yield source, weight


def layout_of(model: nn.Module) -> EngineLayout:
    """Return the layout of an engine's own model."""
    shapes: dict[str, tuple[int, ...]] = {}
    floating: set[str] = set()
    tied: dict[str, str] = {}
    first: dict[int, str] = {}
    for stored, tensor in model.state_dict(keep_vars=True).items():
        name = plain_name(stored)
        if name.startswith(f"{VALUE_HEAD}."):
            continue
        shapes[name] = tuple(tensor.shape)
        if tensor.is_floating_point():
            floating.add(name)
        if first.setdefault(id(tensor), name) != name:
            tied[name] = first[id(tensor)]
    return EngineLayout(shapes, frozenset(floating), tied)


def model_of_config(path: str | Path, **options: Any) -> Any:
    """Return a model created from a checkpoint's config, without weights.

    Raises:
        UnsupportedError: there is no config, or transformers does not support its type.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    try:
        config: Any = AutoConfig.from_pretrained(path, **options)
        is_text = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map")
        kind: Any = AutoModelForCausalLM if is_text else AutoModelForImageTextToText
        with torch.device("meta"):
            return kind.from_config(config, **options)
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise UnsupportedError(
            f"transformers builds no model from the config of {str(path)!r} ({reason:.200}); give the folder of a "
            "checkpoint"
        ) from error


def shapes_of_folder(folder: str | Path) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of the weights in a checkpoint's safetensors files; None if there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        shapes |= {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    return shapes or None


def _check_names(names: list[str], layout: EngineLayout) -> None:
    model_names = set(names)
    sources = {layout.tied.get(name, name) for name in model_names}
    missing = sorted(layout.shapes.keys() - layout.tied.keys() - sources)
    unknown = sorted(model_names - layout.shapes.keys())
    if missing or unknown:
        raise InvalidInputError(
            f"update_weights: the given model does not fit that of the engine, as it {_listed('lacks', missing)}"
            f"{' and ' * bool(missing and unknown)}{_listed('has', unknown)}; give the model of the engine's "
            f"checkpoint ({_KEEPS})"
        )


def _check_shape_and_kind(name: str, weight: Tensor, layout: EngineLayout | None) -> None:
    if layout is not None and tuple(weight.shape) != tuple(layout.shapes[name]):
        raise InvalidInputError(
            f"update_weights: the given model does not fit that of the engine: {name!r} has shape "
            f"{tuple(weight.shape)}, and the engine's has {tuple(layout.shapes[name])}; give the model of the engine's "
            f"checkpoint ({_KEEPS})"
        )
    is_other = layout is not None and weight.is_floating_point() != (name in layout.floating)
    if weight.is_meta:
        raise InvalidInputError(
            f"update_weights: {name!r} is on the device meta, without values; give a model with values ({_KEEPS})"
        )
    if is_other:
        other = "not floating point" if weight.is_floating_point() else "floating point"
        raise InvalidInputError(
            f"update_weights: {name!r} is {weight.dtype}, but the engine's is {other}; give the model of the engine's "
            f"checkpoint ({_KEEPS})"
        )


def _tied_in_engine_only(weights: PolicyWeights, names: list[str], layout: EngineLayout) -> list[tuple[str, str]]:
    """Return the pairs of weights that are tied in the engine but not in the policy."""
    model_names, tied = set(names), weights.tied
    pairs = [(name, other) for name, other in layout.tied.items() if name in model_names and other in model_names]
    return [(name, other) for name, other in pairs if tied.get(name, name) != tied.get(other, other)]


def _listed(verb: str, names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{verb} {', '.join(map(repr, names[:_SHOWN]))}{more}" if names else ""
