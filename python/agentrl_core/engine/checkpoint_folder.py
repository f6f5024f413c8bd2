"""Write checkpoints in Hugging Face's format, file by file while the weights are read."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from agentrl_core.exceptions import EngineError, InvalidInputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FILE_BYTES = 2_000_000_000
"""Most bytes of weights in one checkpoint file, and in memory until it is written; a larger weight gets its own."""


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Convert errors of writing files inside the block to an EngineError with a remedy."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise EngineError(
            f"weights: the folder {folder} cannot be written ({error}); free space on its disk, permit writing there, "
            "or choose another folder by folder= of VllmServer or, for Vllm, by the environment variable TMPDIR"
        ) from error


def checkpoint_names(model: Any, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield weights in their checkpoint form, layer by layer: some models fuse weights in memory, such as experts.

    Args:
        model: the causal model, with or without weights; None: names do not change.
        weights: weights of the model, in the order of its layers.
    """
    from transformers.core_model_loading import revert_weight_conversion

    if model is None:
        yield from weights
        return
    for _, group in groupby(weights, key=lambda each: _layer(each[0])):
        yield from revert_weight_conversion(model, dict(group)).items()


def write_checkpoint(
    folder: Path, model: Any, weights: Iterable[tuple[str, Tensor]], tokenizer: PreTrainedTokenizerBase
) -> None:
    """Write weights, config, generation config, tokenizer, chat template and any custom code to an empty folder.

    Args:
        folder: the empty folder.
        model: the causal model, with or without weights, whose config is written.
        weights: weights of the model, tied ones once; a file is written whenever `FILE_BYTES` have been read.
        tokenizer: the tokenizer with its chat template.

    Raises:
        InvalidInputError: transformers refuses to save the config, generation config or tokenizer.
        EngineError: the disk is full, or the folder cannot be written.
    """
    with disk_errors(folder):
        _write_files(folder, checkpoint_names(model, weights))
        _write_config(folder, model, tokenizer)


def _write_config(folder: Path, model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    config = copy.deepcopy(model.config)
    name = type(model).__name__
    config.architectures = [name.removeprefix("FSDP") if type(model).__mro__[1].__name__ == "FSDPModule" else name]
    try:
        config.save_pretrained(folder)
        if getattr(model, "_auto_class", None) is not None:
            from transformers.dynamic_module_utils import custom_object_save

            custom_object_save(model, folder, config=config)
        if getattr(model, "generation_config", None) is not None:
            model.generation_config.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(
            f"weights: transformers cannot save the model's config or the tokenizer ({error}); correct the one that it "
            "refuses (nothing was changed)"
        ) from error


def _write_files(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    from safetensors.torch import save_file

    pending: dict[str, Tensor] = {}
    place: dict[str, int] = {}
    size, total, files = 0, 0, 0

    def write() -> None:
        nonlocal pending, size, files
        save_file(pending, folder / f"{files}.part", metadata={"format": "pt"})
        pending, size, files = {}, 0, files + 1

    for name, weight in weights:
        if pending and size + weight.nbytes > FILE_BYTES:
            write()
        pending[name] = weight.contiguous().cpu()
        place[name] = files
        size, total = size + weight.nbytes, total + weight.nbytes
    write()
    names = [
        f"model-{number + 1:05}-of-{files:05}.safetensors" if files > 1 else "model.safetensors"
        for number in range(files)
    ]
    for number, name in enumerate(names):
        (folder / f"{number}.part").rename(folder / name)
    if files > 1:
        index = {"metadata": {"total_size": total}, "weight_map": {name: names[at] for name, at in place.items()}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _layer(name: str) -> str:
    """Return the prefix of a weight's name up to the layer number; outside of layers, the whole name."""
    parts = name.split(".")
    number = next((place for place, part in enumerate(parts) if part.isdecimal()), len(parts))
    return ".".join(parts[: number + 1])
