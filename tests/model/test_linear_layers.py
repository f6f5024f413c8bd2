"""Linear layers by oneDNN give torch's results, and run only on supported inputs."""

import copy
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

from agentrl_core import loss
from agentrl_core.model.matmul import fast_from, fast_linear_layers, onednn_is_fast
from agentrl_core.model.pack import Streams

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
import causal_types

WIDTHS = 96, 176
FAST = onednn_is_fast()


def layers(*, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    first, second = nn.Linear(*WIDTHS, bias=bias, dtype=dtype), nn.Linear(*WIDTHS[::-1], bias=bias, dtype=dtype)
    return nn.Sequential(first, nn.Tanh(), second)


def inputs(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def nodes(output: torch.Tensor) -> Iterator[str]:
    """Yield the names of the functions that made a tensor."""
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None:
            yield type(node).__name__
            waiting += [each for each, _ in node.next_functions]


def is_used(output: torch.Tensor) -> bool:
    return "_LinearBackward" in set(nodes(output))


@pytest.mark.parametrize("shape", [(90,), (3, 40), (2, 5, 31)])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("trained", ["all", "inputs", "weights"])
def test_outputs_and_gradients_are_those_in_double_precision(shape: tuple[int, ...], bias: bool, trained: str) -> None:
    results = {}
    for dtype in (torch.float64, torch.float32):
        model, states = layers(bias=bias).to(dtype), inputs(*shape, WIDTHS[0], dtype=dtype)
        model.requires_grad_(trained != "inputs")
        states.requires_grad_(trained != "weights")
        with fast_linear_layers(model, states[..., 0].numel()):
            output = model(states)
        (output**3).transpose(0, -1).sum().backward()  # a gradient that is not contiguous
        assert is_used(output) == (FAST and dtype == torch.float32)
        gradients = [states.grad, *(each.grad for each in model.parameters())]
        results[dtype] = [output.detach(), *(each for each in gradients if each is not None)]
    assert len(results[torch.float32]) == 1 + (trained != "weights") + (trained != "inputs") * (4 if bias else 2)
    for exact, fast in zip(*results.values(), strict=True):
        torch.testing.assert_close(fast.double(), exact, rtol=1e-5, atol=1e-5 * float(exact.abs().max()))


def test_a_gradient_that_is_one_number_everywhere_is_multiplied() -> None:
    model, states = layers(), inputs(90, WIDTHS[0])
    with fast_linear_layers(model, 90):
        model(states).sum().backward()
    fast = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    model.zero_grad()
    model(states).sum().backward()
    torch.testing.assert_close(fast, [each.grad for each in model.parameters()], rtol=1e-5, atol=1e-4)


def test_frozen_weights_keep_no_inputs() -> None:
    model, states = layers().requires_grad_(False), inputs(90, WIDTHS[0]).requires_grad_()
    first: Any = model[0]
    with fast_linear_layers(model, 90):
        output = first(states)
    saved = getattr(output.grad_fn, "saved_tensors", (first.weight,))
    assert [each.shape for each in saved if each is not None] == [first.weight.shape]


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("rows", "dtype", "surrounding"),
    [
        (1, torch.float32, nullcontext),
        (90, torch.bfloat16, nullcontext),
        (90, torch.float64, nullcontext),
        (90, torch.float32, autocast),
    ],
)
def test_elsewhere_torch_computes(rows: int, dtype: torch.dtype, surrounding: Any) -> None:
    model, states = layers(dtype=dtype), inputs(rows, WIDTHS[0], dtype=dtype)
    with surrounding():
        with fast_linear_layers(model, rows):
            output = model(states)
        assert not is_used(output)
        assert torch.equal(output, model(states))


def test_activation_checkpointing_recomputes_layers_in_the_same_way() -> None:
    model, states = layers(), inputs(90, WIDTHS[0]).requires_grad_()
    with fast_linear_layers(model, 90):
        output = checkpoint(model, states, use_reentrant=False)
    output.square().sum().backward()  # torch compares what both passes saved
    again = model(states.detach())
    assert torch.equal(output, again)
    assert states.grad is not None


def test_another_thread_is_left_alone() -> None:
    model, states, used = layers(), inputs(90, WIDTHS[0]), []
    with fast_linear_layers(model, 90):
        thread = threading.Thread(target=lambda: used.append(is_used(model(states))))
        thread.start()
        thread.join()
        assert is_used(model(states)) == FAST
    assert used == [False]


def test_a_thread_that_ends_its_block_leaves_that_of_another() -> None:
    model, states, used = layers(), inputs(90, WIDTHS[0]), []
    entered, may_end = threading.Event(), threading.Event()

    def other() -> None:
        with fast_linear_layers(model, 90):
            entered.set()
            may_end.wait()
            used.append(is_used(model(states)))

    thread = threading.Thread(target=other, daemon=True)
    with fast_linear_layers(model, 90):
        thread.start()
        entered.wait()
    assert not is_used(model(states))
    may_end.set()
    thread.join()
    assert used == [FAST]
    assert not any("forward" in vars(part) for part in model)


def test_a_nested_block_leaves_the_outer_one() -> None:
    model, states = layers(), inputs(90, WIDTHS[0])
    with fast_linear_layers(model, 90):
        with fast_linear_layers(model, 90):
            assert is_used(model(states)) == FAST
        assert is_used(model(states)) == FAST
    assert not is_used(model(states))


def test_a_forward_set_on_the_instance_is_called_and_restored() -> None:
    model, states, calls = layers(), inputs(90, WIDTHS[0]), []
    first: Any = model[0]
    original = first.forward
    first.forward = hooked = lambda rows: (calls.append(len(rows)), original(rows))[1]
    with fast_linear_layers(model, 90):
        model(states)
    assert (calls, first.forward) == ([90], hooked)


def test_a_copy_or_pickle_made_in_the_block_uses_its_own_weights() -> None:
    model, states = layers(), inputs(90, WIDTHS[0])
    expected = model(states)
    with fast_linear_layers(model, 90):
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    with torch.no_grad():
        next(model.parameters()).zero_()
    for each in copies:
        assert torch.equal(each(states), expected)
        with fast_linear_layers(each, 90):
            assert is_used(each(states)) == FAST
        assert not is_used(each(states))
        assert not FAST or not any("forward" in vars(part) for part in each)


class Zero:
    """A forward that a library set on a layer."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        self.layer = layer

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(rows, 0 * self.layer.weight)


def test_a_copy_made_in_the_block_keeps_the_forward_of_the_instance() -> None:
    model, states = layers(), inputs(90, WIDTHS[0])
    first: Any = model[0]
    first.forward = Zero(first)
    expected = model(states)
    with fast_linear_layers(model, 90):
        copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    for each in copies:
        assert torch.equal(each(states), expected)
        with fast_linear_layers(each, 90):
            assert torch.allclose(each(states), expected)
        assert each[0].forward.layer is each[0] or not FAST


@pytest.mark.parametrize("enabled", [False, True], ids=["plain", "autocast"])
def test_a_large_head_is_read_and_fused_as_ever(enabled: bool) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16_384, **sizes))
    pack = causal_types.pack_of(causal_types.sequences(), "sequence")
    pack = replace(pack, streams=Streams({**pack.streams, "weight_kl": torch.ones(len(pack.target))}))
    assert not FAST or fast_from(model) < len(pack.target)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        output, fused = pack.run(model), loss.run_fused(model, pack, loss.Imitation("token_mean"))
    value, _ = loss.Imitation("token_mean")(output, pack)
    assert output.logprob.dtype == torch.float32
    torch.testing.assert_close(fused.loss, value, rtol=1e-5, atol=1e-6)
    assert is_used(value) == FAST


def test_a_changed_weight_is_noticed() -> None:
    model, states = layers(), inputs(90, WIDTHS[0]).requires_grad_()
    with fast_linear_layers(model, 90):
        output = model(states)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()
