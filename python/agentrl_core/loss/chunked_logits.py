"""Losses computed from hidden states, chunk by chunk, so that the logits of a batch are never in memory at once.

    update.loss(loss.run_fused(policy, pack, recipe.loss), pack).backward()

Gradients of a token-separable loss are computed in the forward pass, while a chunk of logits exists. That saves one
product with the head's weight compared with recomputation.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.loss._operations import fused_loss, known_loss, linear_logprob_and_lse
from agentrl_core.loss.base import Loss
from agentrl_core.loss.inputs import SOURCE, Tokens
from agentrl_core.model import pack_forward
from agentrl_core.model.lm_head import WORKSPACE, folded
from agentrl_core.model.pack import PackOutput

if TYPE_CHECKING:
    from agentrl_core.model.pack import Pack, RowLoss


@dataclass(frozen=True, eq=False)
class FusedOutput(PackOutput):
    """Result of `loss.fused` for a pack: its loss, and detached log-probs and entropies.

    `update.loss(output, pack)` takes it like the output of `pack.run`, and records its metrics.

    Attributes:
        loss: the loss, a scalar to call `backward` on.
        metrics: those of `Loss.evaluate`, detached.
        policy: the loss component that computed `loss` and `metrics`.
    """

    loss: Tensor = field(kw_only=True)
    metrics: dict[str, Tensor] = field(kw_only=True)
    policy: Loss = field(kw_only=True)

    def evaluated(self, loss: RowLoss, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002 - it was made of it
        """Return the loss and the metrics, if `loss` is the component that computed them.

        Raises:
            InvalidInputError: `loss` is another component, for which no gradient was computed.
        """
        if loss != self.policy:
            raise InvalidInputError(
                f"this output was fused with the loss {self.policy!r}, not with {loss!r}; give loss.fused the loss "
                "of the recipe"
            )
        return self.loss, self.metrics


def fused(
    hidden: Tensor,
    weight: Tensor,
    pack: Pack,
    policy: Loss,
    *,
    bias: Tensor | None = None,
    factor: float = 1.0,
    softcap: float | None = None,
    workspace: int | None = None,
) -> FusedOutput:
    """Return the loss of a pack from hidden states, differentiable with respect to these, head weight and head bias.

    The result equals that of `pack.run` and `policy`. Each prediction pair has fp32 logits z = factor (h W^T + bias)
    (fp64 for fp64 inputs), y = softcap tanh(z / softcap) with a soft cap, otherwise y = z. log p and H are those of y
    times the pair's inverse temperature. A loss whose term of a row depends on that row alone (`policy.separable`)
    computes the logits once: with g = dL/dlog p, h = dL/dH,

        dy_j = inverse_temperature [ g (1[j = target] - p_j) - h p_j (log p_j + H) ],
        dz_j = dy_j (1 - (y_j / softcap)^2)

    Any other loss uses `linear_logprob` with ordinary autograd, which computes the logits twice.

    Args:
        hidden: `[T, H]`, the result of `pack.forward`; bf16, fp16, fp32 or fp64.
        weight: `[V, H]`, the weight of the head. If its dtype differs from that of `hidden`, the wider one is used: for
            fp32 parameters and bf16 activations, `weight.to(hidden.dtype)` is faster.
        pack: the pack from which `hidden` was computed.
        policy: the loss; it may read log-probs and entropies, but no other model outputs.
        bias: `[V]`, the bias of the head; None: it has none.
        factor: number by which the model multiplies its logits, above 0: `config.logit_scale` of Cohere,
            `1 / config.logits_scaling` of Granite. `pack.run` detects it and the soft cap.
        softcap: the model's soft cap, above 0, applied after the factor and before the temperature:
            `config.final_logit_softcapping` of Gemma 2.
        workspace: bytes for logits and their derivatives at a time, independent of T and N; at least one tile of
            512 rows on CUDA, 64 on a CPU with AVX-512, 128 on other CPUs. None: 1 GiB on CUDA, 16 MiB on a CPU
            with AVX-512, 32 MiB on other CPUs. The gradient of `weight` is summed in fp32 outside of it.

    Returns:
        `FusedOutput`: `loss` backpropagates into `hidden`, `weight` and `bias`, once (not twice differentiable).

    Raises:
        InvalidInputError: shapes, dtypes or devices do not fit.
        UnsupportedError: the loss reads other model outputs.

    Example:
        >>> import torch
        >>> from agentrl_core import loss
        >>> from agentrl_core.model.pack import Pack, Streams
        >>> ids, rows = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
        >>> streams = {"inverse_temperature": torch.ones(2), "weight_kl": torch.ones(2) / 2}
        >>> pack = Pack(ids, ids, torch.tensor([0, 3]), 3, rows, rows + 1, rows, rows, Streams(streams))
        >>> hidden, weight = torch.zeros(3, 4, requires_grad=True), torch.ones(10, 4)
        >>> output = loss.fused(hidden, weight, pack, loss.Imitation("token_mean"))
        >>> output.loss.item(), output.entropy.tolist()  # ln 10: all tokens are equally likely
        (2.302, [2.302, 2.302])
    """
    if not isinstance(policy, Loss):
        raise InvalidInputError(f"policy is {policy!r}; give a loss component, such as recipe.loss or loss.Policy()")
    pack = pack.to(hidden.device)
    scale = pack.streams.inverse_temperature
    hidden, weight, workspace = _checked(hidden, weight, bias, pack.source_row, pack.target, scale, workspace)
    scale, softcap = _folded_scale(scale, factor, softcap)
    if policy.outputs:
        raise UnsupportedError(
            f"{policy.title()} reads the model's answer {policy.outputs[0]!r}, which loss.fused does not make; use "
            "update.loss(pack.run(model), pack)"
        )
    pairs = (hidden, weight, bias, pack.source_row, pack.target, scale)
    if not policy.separable:
        logprob, entropy, _ = linear_logprob_and_lse(*pairs, softcap, workspace)
        entropy_read = entropy if policy.needs_entropy_gradient else entropy.detach()
        value, metrics = policy.evaluate(Tokens(logprob, entropy_read, pack.streams))
        return FusedOutput(logprob.detach(), entropy.detach(), loss=value, metrics=metrics, policy=policy)
    name, names = known_loss(policy, (SOURCE,) if SOURCE in pack.streams else ())
    by = (hidden, weight, bias)
    needed = [torch.is_grad_enabled() and value is not None and value.requires_grad for value in by]
    value, sums, logprob, entropy, *_ = fused_loss(
        *pairs,
        list(pack.streams.values()),
        ",".join(pack.streams),
        name,
        len(names),
        softcap,
        workspace,
        needed,
    )
    metrics = dict(zip(names, sums.unbind(), strict=True))
    return FusedOutput(logprob, entropy, loss=value, metrics=metrics, policy=policy)


def run_fused(model: nn.Module, pack: Pack, policy: Loss) -> FusedOutput:
    """Run a pack on a model and compute its loss at the output layer, without keeping logits.

    The numbers are those of `update.loss(pack.run(model), pack)`.

    Args:
        model: a model for `Pack.run`, bare or wrapped, with an output layer that is a plain `torch.nn.Linear`.
        pack: the pack.
        policy: the loss, as for `fused`.

    Returns:
        `FusedOutput`, as for `fused`.

    Raises:
        UnsupportedError: the model cannot run the pack; its output layer has an adapter or is quantised, or is of an
            unknown kind; the loss reads other model outputs.

    Example:
        >>> import torch
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> from agentrl_core import loss
        >>> from agentrl_core.model.pack import Pack, Streams
        >>> sizes = dict(vocab_size=32, hidden_size=8, intermediate_size=8, num_hidden_layers=1)
        >>> model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
        >>> ids, rows = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
        >>> streams = {"inverse_temperature": torch.ones(2), "weight_kl": torch.ones(2) / 2}
        >>> pack = Pack(ids, ids, torch.tensor([0, 3]), 3, rows, rows + 1, rows, rows, Streams(streams))
        >>> output = loss.run_fused(model, pack, loss.Imitation("token_mean"))
        >>> output.loss.requires_grad
        True
    """
    return cast("FusedOutput", pack_forward.fused(pack, model, functools.partial(fused, policy=policy)))


def linear_logprob(
    hidden: Tensor,
    weight: Tensor,
    target: Tensor,
    inverse_temperature: Tensor | None = None,
    *,
    source_row: Tensor | None = None,
    bias: Tensor | None = None,
    factor: float = 1.0,
    softcap: float | None = None,
    workspace: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Return log-probs and entropies of tokens from hidden states, without keeping logits; backward recomputes them.

    With z = factor (h W^T + bias) in fp32 (fp64 for fp64 inputs), y = softcap tanh(z / softcap) or, without a soft
    cap, y = z, x = inverse_temperature y, S = sum e^(x - max x) and U = sum e^(x - max x) (x - max x):
    log p = x_target - max x - log S, H = log S - U / S.

    Args:
        hidden: `[T, H]`, hidden states; bf16, fp16, fp32 or fp64.
        weight: `[V, H]`, the weight of the head.
        target: `int64[N]`, token ids.
        inverse_temperature: `[N]`, without gradient; None: 1.
        source_row: `int64[N]`, the row of `hidden` that each target is predicted from; None: row i predicts target i.
        bias: `[V]`, the bias of the head, or None.
        factor: number by which the model multiplies its logits, above 0; see `fused`.
        softcap: the model's soft cap, above 0, or None; see `fused`.
        workspace: bytes for logits at a time; see `fused`.

    Returns:
        `logprob` and `entropy` in nats, `[N]` each, fp32 or fp64; both differentiable by `hidden`, `weight` and `bias`.

    Raises:
        InvalidInputError: shapes, dtypes or devices do not fit.

    Example:
        >>> import torch
        >>> from agentrl_core import loss
        >>> logprob, entropy = loss.linear_logprob(torch.zeros(2, 4), torch.ones(10, 4), torch.tensor([3, 9]))
        >>> logprob.tolist(), entropy.tolist()
        ([-2.302, -2.302], [2.302, 2.302])
    """
    if source_row is None:
        source_row = torch.arange(len(target), device=hidden.device)
    if inverse_temperature is None:
        inverse_temperature = torch.ones(len(target), device=hidden.device)
    hidden, weight, workspace = _checked(hidden, weight, bias, source_row, target, inverse_temperature, workspace)
    scale, softcap = _folded_scale(inverse_temperature, factor, softcap)
    logprob, entropy, _ = linear_logprob_and_lse(hidden, weight, bias, source_row, target, scale, softcap, workspace)
    return logprob, entropy


def _folded_scale(scale: Tensor, factor: float, softcap: float | None) -> tuple[Tensor, float | None]:
    """Check factor and soft cap; return scale and soft cap with the factor folded in."""
    for name, value in (("factor", factor), ("softcap", softcap)):
        if value is not None and not 0.0 < value < float("inf"):
            raise InvalidInputError(f"{name}={value} is not possible; give a finite number above 0")
    return folded(scale, float(factor), None if softcap is None else float(softcap))


def _checked(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    source_row: Tensor,
    target: Tensor,
    scale: Tensor,
    workspace: int | None,
) -> tuple[Tensor, Tensor, int]:
    """Check shapes, dtypes and devices; return hidden states and weight in their wider dtype, and the workspace."""
    if hidden.dim() != 2 or weight.dim() != 2 or hidden.shape[1] != weight.shape[1]:
        raise InvalidInputError(
            f"hidden has shape {tuple(hidden.shape)} and weight {tuple(weight.shape)}; give [tokens, size] and "
            "[vocabulary, size], such as pack.forward(model) and model.lm_head.weight"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise InvalidInputError(f"bias has shape {tuple(bias.shape)}; give [vocabulary], here [{len(weight)}]")
    of_head = {"hidden": hidden, "weight": weight} | ({} if bias is None else {"bias": bias})
    for name, value in of_head.items():
        if value.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float64):
            raise InvalidInputError(f"{name} is {value.dtype}; give bfloat16, float16, float32 or float64")
    rows = {"target": target, "source_row": source_row, "inverse_temperature": scale}
    for name, value in (of_head | rows).items():
        if value.device != hidden.device:
            raise InvalidInputError(f"{name} is on {value.device}, hidden on {hidden.device}; bring both to one device")
    for name, value in (("target", target), ("source_row", source_row)):
        if value.dtype != torch.int64 or value.dim() != 1:
            raise InvalidInputError(
                f"{name} is {value.dtype} of shape {tuple(value.shape)}; give a one-dimensional tensor of int64"
            )
    for name, value in (("source_row", source_row), ("inverse_temperature", scale)):
        if value.shape != target.shape:
            raise InvalidInputError(
                f"{name} has shape {tuple(value.shape)}, but target has {tuple(target.shape)}; give one value for each "
                "target"
            )
    if scale.requires_grad:
        raise InvalidInputError("inverse_temperature requires a gradient, but none is computed for it; detach it")
    if workspace is None:
        workspace = WORKSPACE.get(hidden.device.type, WORKSPACE["cpu"])
    elif workspace < 1:
        raise InvalidInputError(f"workspace={workspace} is not possible; give a number of bytes above 0")
    if hidden.device.type == "cpu" and not torch.compiler.is_compiling():  # on other devices this would synchronise
        for name, value, count in (("source_row", source_row, len(hidden)), ("target", target, len(weight))):
            if len(value) and (int(value.min()) < 0 or int(value.max()) >= count):
                place = int(((value < 0) | (value >= count)).nonzero()[0])
                raise InvalidInputError(f"{name}[{place}] is {int(value[place])}; give numbers from 0 to {count - 1}")
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    return hidden.to(dtype), weight.to(dtype), workspace
