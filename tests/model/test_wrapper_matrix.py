"""Each wrapper in one process, in each layout and way: equal to the wrapper's padded run, or refused with a remedy.

Wrappers over several ranks are in `test_wrapped_ranks.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from wrapped_ranks import differentiate, gradients, new_model

from agentrl_core.exceptions import UnsupportedError

LORA: dict[str, dict[str, Any]] = {
    "lora": {"target_modules": "all-linear"},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "lora on the head": {"target_modules": ["lm_head", "q_proj"]},
    "saved head": {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
}
COMPILED = ["compiled", "compiled layers"]
WRAPPERS = ["bare", *LORA, "checkpointed", "bf16", "autocast"]
REFUSED = {
    (name, "fused"): r"but a fused loss needs an unmodified .*; use pack\.run"
    for name in ("lora on the head", "saved head")
}
ROUNDED = {"bf16": 0.05, "autocast": 0.05}
"""Largest allowed difference of a gradient, in units of the largest one; in fp32 1e-5."""


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Remove compiled code of a wrapper, so that no other test uses it."""
    yield
    torch.compiler.reset()


def wrapped(name: str) -> Any:
    model = new_model("")
    if name in LORA:
        peft = pytest.importorskip("peft")
        model = peft.get_peft_model(model, peft.LoraConfig(r=4, init_lora_weights=False, **LORA[name]))
    if name == "bf16":
        model = model.bfloat16()
    if name == "checkpointed":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if name == "compiled":
        return torch.compile(model, backend="eager")
    if name == "compiled layers":
        for layer in model.model.layers:
            layer.compile(backend="eager")
    return model.train()


def computed(model: nn.Module, name: str, layout: str, way: str) -> dict[str, Tensor]:
    rounding = torch.autocast("cpu", torch.bfloat16) if name == "autocast" else contextlib.nullcontext()
    with rounding:
        column = differentiate(model, layout, way)
    return gradients(model) if column is None else {"column": column}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, as it compiles
@pytest.mark.parametrize("name", [*WRAPPERS, *(pytest.param(name, marks=pytest.mark.slow) for name in COMPILED)])
def test_every_layout_in_every_way(name: str) -> None:
    model = wrapped(name)
    reference = {way: computed(model, name, "padded", way) for way in ("run", "annotate")}
    assert max(float(each.abs().max()) for each in reference["run"].values()) > 1e-4
    for layout, way in product(("tree", "sequence", "padded"), ("run", "fused", "annotate")):
        if (name, way) in REFUSED:
            with pytest.raises(UnsupportedError, match=REFUSED[name, way]):
                computed(model, name, layout, way)
            continue
        result, expected = computed(model, name, layout, way), reference["annotate" if way == "annotate" else "run"]
        assert result.keys() == expected.keys()
        size = max(float(each.abs().max()) for each in expected.values())
        difference = max(float((result[key] - expected[key]).abs().max()) for key in expected)
        assert difference < ROUNDED.get(name, 1e-5) * size, (layout, way, difference / size)
