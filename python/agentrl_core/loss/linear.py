"""Losses straight from hidden states: the logits of a batch are never there all at once.

    update.loss(loss.run_fused(policy, pack, recipe.loss), pack).backward()

Gradients of a token-separable loss are formed in the forward pass, while a chunk of logits is there: one product with
the head's weight less than with recomputation.
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
from agentrl_core.loss.tokens import SOURCE, Tokens
from agentrl_core.model import run
from agentrl_core.model.lm_head import WORKSPACE, folded
from agentrl_core.model.pack import PackOutput

if TYPE_CHECKING:
    from agentrl_core.model.pack import Pack, RowLoss


@dataclass(frozen=True, eq=False)
class FusedOutput(PackOutput):
    """Result of `loss.fused` for a pack: its loss, beside detached log-probs and entropies.

    `update.loss(output, pack)` takes it like the output of `pack.run`, and records its metrics.

    Attributes:
        loss: the loss, a scalar to call `backward` on.
        metrics: as `Loss.evaluate` gives them, detached.
        policy: the loss component that made both.
    """

    loss: Tensor = field(kw_only=True)
    metrics: dict[str, Tensor] = field(kw_only=True)
    policy: Loss = field(kw_only=True)

    def evaluated(self, loss: RowLoss, pack: Pack) -> tuple[Tensor, dict[str, Tensor]]:  # noqa: ARG002 - it was made of it
        """Loss and metrics, for the component that made them.

        Raises:
            InvalidInputError: another component asks; there is no gradient for it.
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
    """The loss of a pack from its hidden states and the head's weight, with gradients by both, and by the head's bias.

    The numbers are those of `pack.run` and `policy`: fp32 logits z = factor (h W^T + bias) of each prediction pair
    (fp64 for fp64 inputs), behind a soft cap y = softcap tanh(z / softcap), else y = z, at its inverse temperature,
    and of them log p and H. A loss whose term of a row depends on that row alone (`policy.separable`) goes over the
    logits once: with g = dL/dlog p, h = dL/dH,

        dy_j = inverse_temperature [ g (1[j = target] - p_j) - h p_j (log p_j + H) ],
        dz_j = dy_j (1 - (y_j / softcap)^2)

    Any other loss takes `linear_logprob`, ordinary autograd, and the logits once more.

    Args:
        hidden: `[T, H]`, what `pack.forward` gives; bf16, fp16, fp32 or fp64.
        weight: `[V, H]`, the weight of the head. Of two dtypes the wider one is computed in: where parameters are fp32
            and activations bf16, `weight.to(hidden.dtype)` is faster.
        pack: the pack that `hidden` is of.
        policy: the loss; it may read log-probs and entropies, but no further answers of the model.
        bias: `[V]`, the bias of the head, where it has one.
        factor: what the model multiplies its logits by, above 0: `config.logit_scale` of Cohere,
            `1 / config.logits_scaling` of Granite. `pack.run` finds it, and the soft cap, by itself.
        softcap: the model's soft cap, above 0, behind the factor and before the temperature:
            `config.final_logit_softcapping` of Gemma 2.
        workspace: bytes that logits and their derivatives may take at a time, whatever T and N are; at least a tile of
            512 rows on CUDA, 64 on a CPU with AVX-512, 128 on another is taken. None: 1 GiB on CUDA, 16 MiB on a CPU
            with AVX-512, 32 MiB on another. The gradient by `weight` is summed up in fp32 beside it.

    Returns:
        `FusedOutput`: `loss` backpropagates into `hidden`, `weight` and `bias`, once (not twice differentiable).

    Raises:
        InvalidInputError: shapes, dtypes or devices do not fit.
        UnsupportedError: the loss reads further answers.

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
    scale, softcap = _behind(scale, factor, softcap)
    if policy.outputs:
        raise UnsupportedError(
            f"{policy.title()} reads the model's answer {policy.outputs[0]!r}, which loss.fused does not make; use "
            "update.loss(pack.run(model), pack)"
        )
    pairs = (hidden, weight, bias, pack.source_row, pack.target, scale)
    if not policy.separable:
        logprob, entropy, _ = linear_logprob_and_lse(*pairs, softcap, workspace)
        read = entropy if policy.needs_entropy_gradient else entropy.detach()
        value, metrics = policy.evaluate(Tokens(logprob, read, pack.streams))
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
    """Run a pack on a model and compute its loss at the output layer, inside the model's call, without keeping logits.

    The numbers are those of `update.loss(pack.run(model), pack)`.

    Args:
        model: as of `Pack.run`, bare or wrapped, with an output layer that is a plain `torch.nn.Linear`.
        pack: the pack.
        policy: the loss, as of `fused`.

    Returns:
        As `fused`.

    Raises:
        UnsupportedError: the model cannot run the pack; its output layer has an adapter or is quantised, or it is not
            known how it makes logits; the loss reads further answers.

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
    return cast("FusedOutput", run.fused(pack, model, functools.partial(fused, policy=policy)))


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
    """Log-probs and entropies of tokens from hidden states, without keeping logits; the backward pass makes them again.

    With z = factor (h W^T + bias) in fp32 (fp64 for fp64 inputs), y = softcap tanh(z / softcap) or, without a soft
    cap, y = z, x = inverse_temperature y, S = sum e^(x - max x) and U = sum e^(x - max x) (x - max x):
    log p = x_target - max x - log S, H = log S - U / S.

    Args:
        hidden: `[T, H]`; bf16, fp16, fp32 or fp64.
        weight: `[V, H]`.
        target: `int64[N]`, token ids.
        inverse_temperature: `[N]`, without gradient; None: 1.
        source_row: `int64[N]`, the row of `hidden` that each target is predicted from; None: row i predicts target i.
        bias: `[V]`, or None; as factor and soft cap it is that of `fused`.
        factor: above 0.
        softcap: above 0, or None.
        workspace: bytes that logits may take at a time, as of `fused`.

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
    scale, softcap = _behind(inverse_temperature, factor, softcap)
    logprob, entropy, _ = linear_logprob_and_lse(hidden, weight, bias, source_row, target, scale, softcap, workspace)
    return logprob, entropy


def _behind(scale: Tensor, factor: float, softcap: float | None) -> tuple[Tensor, float | None]:
    """Refuse what does not fit; scale and soft cap with the factor in them."""
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
    """Refuse what does not fit; hidden states and weight in the wider of their dtypes, and the workspace in bytes."""
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
            raise InvalidInputError(f"{name} is {value.dtype} of shape {tuple(value.shape)}; give int64 of shape [N]")
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
    if hidden.device.type == "cpu" and not torch.compiler.is_compiling():  # elsewhere it would wait
        for name, value, count in (("source_row", source_row, len(hidden)), ("target", target, len(weight))):
            if len(value) and (int(value.min()) < 0 or int(value.max()) >= count):
                raise InvalidInputError(
                    f"{name} goes from {int(value.min())} to {int(value.max())}; give numbers from 0 to {count - 1}"
                )
    dtype = torch.promote_types(hidden.dtype, weight.dtype)
    return hidden.to(dtype), weight.to(dtype), workspace
