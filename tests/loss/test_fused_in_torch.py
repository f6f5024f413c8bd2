"""The fused loss as an operation of torch: derivatives, registration, compilation, modes, and an update loop."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from fused_cases import EVERYTHING, SEQUENCES, head_of, problem
from hand_made import tiny_model
from systems import LOSSES
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from agentrl_core import Batch, Forest, loss, recipes
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss import _operations
from agentrl_core.model import lm_head as head
from agentrl_core.model.pack import Pack

BOTH = pytest.mark.parametrize("policy", [EVERYTHING, SEQUENCES], ids=["one pass", "two passes"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(head._TILE, "cpu", 8)


def pairs(pack: Pack) -> tuple[Tensor, Tensor, Tensor]:
    return pack.source_row, pack.target, pack.streams.inverse_temperature


@pytest.mark.parametrize("head", ["plain", "all"])
def test_gradcheck(head: str) -> None:
    hidden, weight, pack = problem()
    options = {} if head == "plain" else head_of(head)
    bias = [options.pop("bias")] if "bias" in options else []

    def answers(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        source_row, target, scale = pairs(pack)
        return loss.linear_logprob(
            hidden, weight, target, scale, source_row=source_row, bias=bias, workspace=1, **options
        )

    def lost(policy: loss.Loss, hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return loss.fused(hidden, weight, pack, policy, bias=bias, workspace=1, **options).loss

    # The fast mode compares along random directions; element by element, test_fused.py compares with the plain loss.
    assert torch.autograd.gradcheck(answers, (hidden, weight, *bias), fast_mode=True)
    # Without bounds and detached factors the gradient is that of the value.
    smooth = loss.Policy(clip=None, kl=loss.KL(0.1), entropy=0.1)
    by_segment = loss.Policy(ratio=loss.Ratio("sequence", gradient="segment"), clip=None, entropy=0.1)
    for policy in (smooth, by_segment):
        assert torch.autograd.gradcheck(functools.partial(lost, policy), (hidden, weight, *bias), fast_mode=True)


def test_the_gradient_has_no_gradient() -> None:
    hidden, weight, pack = problem()
    source_row, target, scale = pairs(pack)
    logprob, _ = loss.linear_logprob(hidden, weight, target, scale, source_row=source_row)
    (gradient,) = torch.autograd.grad(logprob.sum(), hidden, create_graph=True)
    with pytest.raises(RuntimeError, match="linear_logprob_gradient"):
        gradient.sum().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize(
    "needed", [[True, True, True], [True, False, False], [False, True, False], [False, False, True], [False] * 3]
)
def test_opcheck(dtype: torch.dtype, needed: list[bool], softcap: float | None) -> None:
    hidden, weight, pack = problem(dtype=dtype)
    # A head without a gradient by its bias has none here.
    inputs = (hidden, weight, head_of("bias", dtype)["bias"] if needed[2] else None)
    head = [
        None if value is None else value.detach().requires_grad_(need)
        for value, need in zip(inputs, needed, strict=True)
    ]
    torch.library.opcheck(_operations.linear_logprob_and_lse, (*head, *pairs(pack), softcap, 1))
    name, metrics = _operations.known_loss(EVERYTHING)
    streams = [stream.clone() for stream in pack.streams.values()]
    torch.library.opcheck(
        _operations.fused_loss,
        (*head, *pairs(pack), streams, ",".join(pack.streams), name, len(metrics), softcap, 1, needed),
    )
    entropy, lse, by_logprob, by_entropy = torch.rand(4, 27, dtype=torch.promote_types(dtype, torch.float32))
    leaves = [None if value is None else value.detach() for value in head]
    for last in (by_entropy, None):
        torch.library.opcheck(
            _operations.linear_logprob_gradient,
            (*leaves, *pairs(pack), entropy, lse, by_logprob, last, softcap, 1, needed),
        )


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # from the compiler's own parts
@BOTH
def test_it_compiles_without_a_break(policy: loss.Loss, backend: str) -> None:
    hidden, weight, pack = problem()

    def step(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output = loss.fused(2.0 * hidden, weight, pack, policy, bias=bias, factor=1.7, softcap=2.0)
        return output.loss, output.logprob, output.metrics["ratio"]

    torch._dynamo.reset()
    compiled = torch.compile(step, backend=backend, fullgraph=True)
    leaves = (hidden, weight, head_of("bias")["bias"])
    result, expected = compiled(*leaves), step(*leaves)
    for one, other in zip(result, expected, strict=True):
        torch.testing.assert_close(one, other)
    gradients = (torch.autograd.grad(outputs[0], leaves) for outputs in (result, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


@BOTH
def test_it_runs_below_a_mode_and_a_checkpoint(policy: loss.Loss) -> None:
    """Counters of FLOPs, selective checkpoints and sharding intercept operations through such modes."""

    class Seen(TorchDispatchMode):
        names: list[str]

        def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> object:
            self.names.append(str(function))
            return function(*args, **(kwargs or {}))

    hidden, weight, pack = problem()
    expected = torch.autograd.grad(loss.fused(hidden, weight, pack, policy).loss, (hidden, weight))
    mode = Seen()
    mode.names = []
    with mode:
        result = torch.autograd.grad(loss.fused(hidden, weight, pack, policy).loss, (hidden, weight))
    assert any("agentrl_core." in name for name in mode.names)
    for one, other in zip(result, expected, strict=True):
        assert torch.equal(one, other)
    again = checkpoint(lambda *leaves: loss.fused(*leaves, pack, policy).loss, hidden, weight, use_reentrant=False)
    for one, other in zip(torch.autograd.grad(again, (hidden, weight)), expected, strict=True):
        assert torch.equal(one, other)


def test_losses_of_one_name_are_not_mixed_up() -> None:
    def declare(sign: float) -> loss.Loss:
        @loss.function(needs=["weight_kl"])
        def term(logprob: Tensor, _: Tensor, streams: dict[str, Tensor]) -> Tensor:
            return sign * streams["weight_kl"] * logprob

        return term

    hidden, weight, pack = problem()
    first = loss.fused(hidden, weight, pack, declare(1.0)).loss
    second = loss.fused(hidden, weight, pack, declare(-1.0)).loss  # declared anew under the same path
    assert torch.equal(first, -second)


def test_a_loss_of_a_name_that_another_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    name, metrics = _operations.known_loss(loss.Policy())
    monkeypatch.setitem(_operations.LOSSES, name, (loss.Policy(entropy=0.5), metrics))
    with pytest.raises(InvalidInputError, match="two different losses"):
        loss.fused(*problem(), loss.Policy())


@pytest.fixture(scope="module")
def batch() -> Batch:
    rng = np.random.default_rng(0)
    forest = Forest(seed=0)
    for group in range(3):
        forest.add_group(group, f"task {group}")
        for member in range(3):
            trajectory = forest.start(group, member)
            forest.append(trajectory, rng.integers(0, 37, 4).tolist(), kind="prompt")
            for _ in range(2):
                count = int(rng.integers(2, 6))
                words, logprobs = rng.integers(0, 37, count).tolist(), -rng.uniform(2.5, 5.0, count)
                forest.append(
                    trajectory, words, kind="action", logprobs=logprobs, temperature=float(rng.uniform(0.7, 1.3))
                )
                forest.step(trajectory)
                forest.append(trajectory, rng.integers(0, 37, 2).tolist(), kind="observation")
            forest.finish(trajectory, reward=float(rng.normal()))
    batch = recipes.GRPO.credit(forest.freeze())
    reference = -rng.uniform(2.5, 5.0, len(batch.column("token", "token")))
    return batch.with_columns("token", reference_logprob=reference)


Step = Callable[[torch.nn.Module, Pack, loss.Loss], object]


def fused_step(model: torch.nn.Module, pack: Pack, policy: loss.Loss) -> object:
    softcap = getattr(model.config, "final_logit_softcapping", None)
    return loss.fused(pack.forward(model), model.lm_head.weight, pack, policy, bias=model.lm_head.bias, softcap=softcap)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", ["qwen3", "gemma2, window"])
@pytest.mark.parametrize("name", ["plain", "covariance", "light_if, policy, update", "segment gradient"])
def test_an_update_takes_it_like_a_run(batch: Batch, name: str, family: str, tied: bool) -> None:
    policy = loss.Policy(entropy=0.05) if name == "plain" else LOSSES[name]
    model = tiny_model(family, tie_word_embeddings=tied)
    if not tied:
        model.lm_head.bias = torch.nn.Parameter(torch.linspace(-1.0, 1.0, 37, dtype=torch.float64))

    def train(step: Step) -> Iterator[object]:
        updates = recipes.GRPO.replace(loss=policy, minibatches=2).updates(batch)
        for update in updates:
            model.zero_grad()
            for pack in update.pack(max_tokens=80):
                update.loss(step(model, pack, policy), pack).backward()
            yield [parameter.grad.clone() for parameter in model.parameters()]
        yield updates.metrics

    *expected, metrics = train(lambda model, pack, _: pack.run(model))
    *result, fused_metrics = train(fused_step)
    assert len(expected) == 2
    for one, other in zip(result, expected, strict=True):
        for gradient, right in zip(one, other, strict=True):
            torch.testing.assert_close(gradient, right, rtol=0, atol=1e-9)
    assert fused_metrics == pytest.approx(metrics, rel=1e-6)


def test_an_update_refuses_the_output_of_another_loss(batch: Batch) -> None:
    (update,) = recipes.GRPO.updates(batch)
    model = tiny_model("llama")
    pack = next(update.pack(max_tokens=200))
    with pytest.raises(InvalidInputError, match=r"was fused with the loss Policy\(.*give loss.fused the loss"):
        update.loss(fused_step(model, pack, loss.Policy(clip=None)), pack)
