"""Read the weights of a policy one by one, under the names of its checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self, cast

import torch
from torch import Tensor, nn

from agentrl_core.engine import lora
from agentrl_core.exceptions import AgentRLError, EngineError, InvalidInputError
from agentrl_core.model.architecture import causal_model_of
from agentrl_core.model.output_layer import VALUE_HEAD
from agentrl_core.model.ranks import is_distributed, is_sharded, num_ranks

WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
"""Parts of names that torch.compile, FSDP and activation checkpointing add to wrapped modules."""
_FSDP = "FullyShardedDataParallel"

Part = Literal["merged", "base", "adapter", "stored"]
"""The weights to read.

`merged`: the base weights with the adapters merged in. `base`: without adapters. `adapter`: the adapters alone.
`stored`: all weights as the model holds them.
"""


def plain_name(name: str) -> str:
    """Return the name that a weight has in the model itself, without the prefixes of wrappers.

    Example:
        >>> from agentrl_core.engine.policy_weights import plain_name
        >>> plain_name("module._orig_mod.model.norm.weight")
        'model.norm.weight'
    """
    parts = [part for part in name.split(".") if part not in WRAPPERS]
    while parts[:1] == ["module"]:
        del parts[0]
    if parts[:2] == ["base_model", "model"]:  # PEFT
        del parts[:2]
    return ".".join(parts)


@dataclass(frozen=True, eq=False)
class _Source:
    """Some weights, and the function that reads them.

    Attributes:
        names: names of the weights.
        read: returns the weights, in the order of the names; all ranks call it.
        unit: the `FullyShardedDataParallel` module that owns the parameters.
        stored: the stored tensor if the source is a single one; None: the weights are computed.
    """

    names: tuple[str, ...]
    read: Callable[[], list[Tensor]]
    unit: nn.Module | None
    stored: Tensor | None = None


class PolicyWeights:
    """Weights of a wrapped or bare policy, or of a state dict: gathered and merged with adapters one at a time.

    If ranks have shards of the weights, each read is a collective call. Rank 0 decides which part is read; other ranks
    read the same part, or call `follow`. The block of a `with` statement ends for all ranks together.

    Args:
        given: a causal model, bare or wrapped (DDP, FSDP, `fully_shard`, PEFT, torch.compile, Accelerate); or a mapping
            from names to tensors.

    Raises:
        InvalidInputError: the value is neither, or FSDP was created without `use_orig_params=True`.
        UnsupportedError: the value contains no causal model, or several.

    Example:
        >>> from agentrl_core import env, warm_start
        >>> from agentrl_core.engine.policy_weights import PolicyWeights
        >>> model, _ = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> with PolicyWeights(model) as weights:
        ...     shapes = {name: tuple(weight.shape) for name, weight in weights.read()}
        >>> shapes["model.norm.weight"], weights.tied
        ((128,), {'lm_head.weight': 'model.embed_tokens.weight'})
    """

    def __init__(self, given: nn.Module | Mapping[str, Tensor]) -> None:
        self.model: Any = None
        """The causal model inside; None: of a state dict."""
        self.given = given
        self._values: dict[str, Tensor] = {}
        if isinstance(given, Mapping):
            self._values = _checked_state(given)
            self._is_collective = num_ranks() > 1 and any(map(is_distributed, self._values.values()))
        else:
            self.model = causal_model_of(given)
            self._is_collective = is_sharded(given)
        self._is_rank_0 = not self._is_collective or torch.distributed.get_rank() == 0
        self._ended = not self._is_collective
        self._unfinished: Iterator[tuple[str, Tensor]] | None = None
        self._sources: dict[Part, list[_Source]] = {}
        self.tied: dict[str, str] = {}
        """The weight that another one is tied to, by the name of the other one."""
        self._find_tied(self._sources_of("merged"))

    @property
    def is_adapted(self) -> bool:
        """Whether the weights include adapters."""
        if self.model is None:
            return any(lora.names_adapter(name) for name in self._values)
        return lora.is_adapted(self.model)

    def names(self, part: Part = "merged") -> list[str]:
        """Return the names of the weights in the order of `read`, including tied ones."""
        names = [name for source in self._sources_of(part) for name in source.names]
        return [each for name in names for each in (name, *self._tied_to(name, part))]

    def read(self, part: Part = "merged") -> Iterator[tuple[str, Tensor]]:
        """Yield the weights, gathered and detached; the trained model does not change.

        Raises:
            EngineError: rank 0 read another part, or ended.
        """
        self._announce(part)
        self._unfinished = self._read(part)
        return self._unfinished

    def follow(self) -> None:
        """Participate in the reads of rank 0 until rank 0 ends them.

        Raises:
            EngineError: the update failed on rank 0.
        """
        while not self._ended:
            part, message = self._broadcast(None)
            if part is None:
                self._ended = True
                if message is not None:
                    raise EngineError(
                        f"update_weights: the engine of rank 0 failed: {message}; correct the cause on rank 0"
                    )
            else:
                _exhaust(self._read(part))

    def stamp(self) -> tuple[int, ...]:
        """Return a key that changes when a weight of the part `base` is written; see `weight_stamp`."""
        return weight_stamp(source.stored for source in self._sources_of("base") if source.stored is not None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ended:
            return
        if self._unfinished is not None:
            _exhaust(self._unfinished)  # the other ranks wait in it
        if self._is_rank_0:
            self._ended = True
            self._broadcast((None, None if error is None else f"{type(error).__name__}: {error}"))
        elif error is None:
            self.follow()
        else:
            try:
                self.follow()
            except EngineError:
                return  # this rank's own error is raised

    def _announce(self, part: Part) -> None:
        if not self._is_collective:
            return
        if self._unfinished is not None:
            _exhaust(self._unfinished)
        announced, message = self._broadcast((part, None))
        if announced == part:
            return
        if announced is None:
            self._ended = True
        else:
            _exhaust(self._read(announced))
            self.follow()
        if message:
            raise EngineError(f"update_weights: the engine of rank 0 failed: {message}; correct the cause on rank 0")
        raise EngineError(
            "update_weights: the engines of rank 0 and of this rank read different weights; give all ranks engines of "
            "one kind, or call engine.send_weights(model) on all ranks but rank 0"
        )

    def _broadcast(self, own: tuple[Part | None, str | None] | None) -> tuple[Part | None, str | None]:
        """Return the part that rank 0 reads next, or None and its error if it ended; rank 0 sends `own`."""
        payload: list[Any] = [own if self._is_rank_0 else None]
        torch.distributed.broadcast_object_list(payload, src=0)
        return cast("tuple[Part | None, str | None]", payload[0])

    def _read(self, part: Part) -> Iterator[tuple[str, Tensor]]:
        unit: nn.Module | None = None
        with ExitStack() as stack:
            for source in self._sources_of(part):
                if source.unit is not unit:
                    stack.close()
                    unit = source.unit
                    stack.enter_context(_unsharded(unit))
                with torch.no_grad():
                    tensors = source.read()
                    if unit is not None:  # views of what is freed
                        tensors = [each.clone() for each in tensors]
                for name, weight in zip(source.names, tensors, strict=True):
                    yield name, weight
                    for other in self._tied_to(name, part):
                        yield other, weight
                del tensors

    def _tied_to(self, name: str, part: Part) -> list[str]:
        return [] if part == "adapter" else [other for other, of in self.tied.items() if of == name]

    def _sources_of(self, part: Part) -> list[_Source]:
        if part not in self._sources:
            if self.model is None:
                self._sources[part] = [_source(name, self._values, name, None) for name in self._values]
            else:
                outer: Any = cast("nn.Module", self.given)
                units = [each for each in outer.modules() if type(each).__name__ == _FSDP]
                unit = next((each for each in units[::-1] if any(m is self.model for m in each.modules())), None)
                if lora.is_adapted(self.model):
                    self._sources[part] = list(_sources_in(self.model, "", unit, part))
                else:
                    self._sources[part] = [] if part == "adapter" else list(_sources_in(self.model, "", unit, "stored"))
            sources = [each for each in self._sources[part] if not self.tied.keys() >= set(each.names)]
            self._sources[part] = sources
        return self._sources[part]

    def _find_tied(self, sources: list[_Source]) -> None:
        """Find weights that share a tensor, so that it is read once."""
        first: dict[object, str] = {}
        for source in sources:
            if source.stored is not None:
                [name], weight = source.names, source.stored
                # Tied tensors of a state dict are detached, so they are different objects that share memory. DTensors,
                # meta tensors and empty tensors have no memory.
                memory = weight.data_ptr()
                key = (memory, weight.shape, weight.stride(), weight.dtype) if memory else id(weight)
                first_name = first.setdefault(key, name)
                if first_name != name:
                    self.tied[name] = first_name
        self._sources.clear()


def send_weights(model: nn.Module | Mapping[str, Tensor]) -> None:
    """Take part in `update_weights` of rank 0's engine, which gathers this rank's shards of the weights.

    Call it on all ranks except 0 when rank 0 calls `generate.update_weights(model, version=...)`. If the weights are
    not sharded, it returns at once.

    Args:
        model: the same model as on rank 0, in its wrapper; or its state dict.

    Raises:
        InvalidInputError: this is rank 0.
        EngineError: the update failed on rank 0.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> model, _ = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> engine.send_weights(model)
        Traceback (most recent call last):
        agentrl_core.exceptions.InvalidInputError: send_weights: this is rank 0, whose engine gets the weights; call ...
    """
    if num_ranks() == 1 or torch.distributed.get_rank() == 0:
        raise InvalidInputError(
            "send_weights: this is rank 0, whose engine gets the weights; call the method update_weights(model, "
            "version=...) of that engine"
        )
    with PolicyWeights(model) as weights:
        weights.follow()


def _checked_state(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    plain_state: dict[str, Tensor] = {}
    entries: Iterable[tuple[Any, Any]] = state_dict.items()
    for name, value in entries:
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InvalidInputError(
                f"update_weights: the state dict has the key {name!r} with a value of type {type(value).__name__}; "
                "give texts as keys and tensors as values"
            )
        plain = plain_name(name)
        if plain in plain_state:
            raise InvalidInputError(
                f"update_weights: two keys of the state dict are {plain!r} without the prefixes of wrappers; give the "
                "state dict of one model"
            )
        if plain.split(".")[0] != VALUE_HEAD:
            plain_state[plain] = value
    if not plain_state:
        raise InvalidInputError("update_weights: the state dict is empty; give the weights of a model")
    return plain_state


def _sources_in(module: nn.Module, prefix: str, unit: nn.Module | None, part: Part) -> Iterator[_Source]:
    """Yield the sources of a module's weights, in the order of its parts."""
    if type(module).__name__ == _FSDP:
        unit = module
        if any(name.endswith("_flat_param") for name, _ in module.named_parameters(recurse=False)):
            raise InvalidInputError(
                "update_weights: FullyShardedDataParallel has flattened the parameters; wrap the model with "
                "use_orig_params=True"
            )
    if part != "stored":
        module = lora.module_in_use(module)
        layer = lora.adapter_layer(module)
        if layer is not None:
            yield from _sources_of_layer(layer, prefix, unit, part)
            return
    if part != "adapter":
        for key in module._parameters:  # noqa: SLF001 - parameters() leaves out what is tied
            if module._parameters[key] is not None:  # noqa: SLF001
                yield _source(prefix + key, module._parameters, key, unit)  # noqa: SLF001
        for key, buffer in module._buffers.items():  # noqa: SLF001
            if buffer is not None and key not in module._non_persistent_buffers_set:  # noqa: SLF001
                yield _source(prefix + key, module._buffers, key, unit)  # noqa: SLF001
    for key, child in module._modules.items():  # noqa: SLF001 - named_children() leaves out what is shared
        if child is not None and (prefix, key) != ("", VALUE_HEAD):
            yield from _sources_in(child, prefix if key in WRAPPERS else f"{prefix}{key}.", unit, part)


def _source(name: str, table: Mapping[str, Any], key: str, unit: nn.Module | None) -> _Source:
    """Return the source of one tensor, looked up on each read because FSDP replaces it."""
    return _Source((name,), lambda: [full_tensor(table[key])], unit, table[key])


def _sources_of_layer(layer: Any, prefix: str, unit: nn.Module | None, part: Part) -> Iterator[_Source]:
    """Yield the sources of a layer with an adapter."""
    if part == "adapter":
        names = lora.lora_tensors(layer)
        for name, (table, key, factor) in names.items():
            yield _Source((f"{prefix}{name}",), _scaled(table, key, factor), unit)
        return
    base = layer.get_base_layer()
    if part == "base" or not lora.differs_from_base(layer):
        yield from _sources_in(base, prefix, unit, "stored")
        return
    keys = [name for name, _ in base.named_parameters()]
    yield _Source(tuple(prefix + key for key in keys), lambda: lora.merged_weights(layer, keys, full_tensor), unit)


def _scaled(table: Mapping[str, Any], key: str, factor: float) -> Callable[[], list[Tensor]]:
    return lambda: [full_tensor(table[key]) * factor]


def full_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor, gathered from all ranks if it is distributed, and detached."""
    detached: Any = tensor.detach()
    return cast("Tensor", detached.full_tensor() if is_distributed(tensor) else detached)


def _unsharded(unit: nn.Module | None) -> AbstractContextManager[Any]:
    if unit is None:
        return nullcontext()
    kind: Any = type(unit)
    return cast("AbstractContextManager[Any]", kind.summon_full_params(unit, recurse=False, writeback=False))


def _exhaust(reading: Iterator[object]) -> None:
    try:
        for _ in reading:
            pass
    except AgentRLError:
        return  # the error is the same on all ranks, and is raised where the weights are read


def weight_stamp(weights: Iterable[Tensor]) -> tuple[int, ...]:
    """Return a checksum of each weight, or of this rank's shard; nearly every write to the weight changes it.

        stamp_i = sum over 8-byte words of weight i, mod 2^64

    It reads all weights, limited by memory bandwidth. Torch's version counters are cheaper, but miss writes through
    `.data`, with which PEFT merges adapters. Swapped words give the same sum.

    Example:
        >>> import torch
        >>> from agentrl_core.engine.policy_weights import weight_stamp
        >>> weight = torch.nn.Parameter(torch.ones(3, 3))
        >>> before = weight_stamp([weight])
        >>> weight.data[2, 2] += 1e-6
        >>> weight_stamp([weight]) == before
        False
    """
    return tuple(map(_sum_of_words, weights))


def _sum_of_words(stored: Tensor) -> int:
    weight = getattr(stored, "_local_tensor", stored).detach()  # to_local() gathers pending sums
    if weight.is_meta:
        return 0
    octets = weight.contiguous().reshape(-1).view(torch.uint8)
    if octets.storage_offset() % 8:  # a view of words has to start at one
        octets = octets.clone()
    end = len(octets) // 8 * 8
    return int(octets[:end].view(torch.int64).sum()) + int(octets[end:].sum())
