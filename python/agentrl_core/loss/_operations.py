"""Custom torch operations of `loss.fused` and `loss.linear_logprob`, with their output shapes and gradients.

A compiler sees each as one node, and its gradient as another.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet, _dispatch_tls_local_include_set, _ForceDispatchKeyGuard
from torch._C._autograd import _get_current_graph_task_keep_graph

from agentrl_core.exceptions import InvalidInputError
from agentrl_core.loss.inputs import Tokens
from agentrl_core.model.lm_head import Gradients, LMHead

if TYPE_CHECKING:
    from agentrl_core.loss.base import Loss

# The losses of fused_loss by name, and the names of their metrics: an operation of torch takes strings, not objects.
LOSSES: dict[str, tuple[Loss, tuple[str, ...]]] = {}


@torch.library.custom_op("agentrl_core::linear_logprob", mutates_args=())
def linear_logprob_and_lse(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    source_row: Tensor,
    target: Tensor,
    scale: Tensor,
    softcap: float | None,
    workspace: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log-prob, entropy and log-sum-exp of the logits of each prediction pair."""
    with torch.autocast(hidden.device.type, enabled=False):
        head = LMHead(hidden, weight, bias, softcap, workspace)
        scale = scale.to(head.dtype)
        chunks = []
        for rows in head.chunks(len(target)):
            logits = head.logits(head.states(source_row[rows]))
            chunks.append(head.rows.statistics(logits, target[rows], scale[rows]))
    logprob, entropy, lse = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return logprob, entropy, lse


@torch.library.custom_op("agentrl_core::linear_logprob_gradient", mutates_args=())
def linear_logprob_gradient(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    source_row: Tensor,
    target: Tensor,
    scale: Tensor,
    entropy: Tensor,
    lse: Tensor,
    by_logprob: Tensor,
    by_entropy: Tensor | None,
    softcap: float | None,
    workspace: int,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor]:
    """Return gradients of hidden states, weight and bias from those of log-prob and entropy; empty if not `needed`."""
    with torch.autocast(hidden.device.type, enabled=False):
        head = LMHead(hidden, weight, bias, softcap, workspace)
        scale = scale.to(head.dtype)
        gradients = Gradients(head, needed)
        for rows in head.chunks(len(target)):
            states = head.states(source_row[rows])
            logits = head.logits(states)
            head.rows.again(logits, scale[rows], lse[rows])
            statistics = (lse[rows], entropy[rows], by_logprob[rows], None if by_entropy is None else by_entropy[rows])
            arguments = (logits, target[rows], scale[rows], *statistics, head.narrow)
            gradients.add(
                head.rows.gradient(*arguments), states, source_row[rows]
            )  # no name keeps it for the next chunk
        by_hidden, by_weight, by_bias = gradients.result()
    return by_hidden.to(hidden.dtype), by_weight.to(weight.dtype), by_bias


@torch.library.custom_op("agentrl_core::fused_loss", mutates_args=())
def fused_loss(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    source_row: Tensor,
    target: Tensor,
    scale: Tensor,
    streams: Sequence[Tensor],
    names: str,
    policy: str,
    metrics: int,
    softcap: float | None,
    workspace: int,
    needed: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return loss, metrics, log-probs and entropies of a separable loss, and gradients of hidden, weight and bias."""
    component, _ = LOSSES[policy]
    with torch.autocast(hidden.device.type, enabled=False):
        head = LMHead(hidden, weight, bias, softcap, workspace)
        scale = scale.to(head.dtype)
        gradients = Gradients(head, needed)
        total = hidden.new_zeros((), dtype=torch.float64)
        sums = hidden.new_zeros(metrics, dtype=torch.float64)
        chunks = []
        for rows in head.chunks(len(target)):
            states = head.states(source_row[rows])
            logits = head.logits(states)
            logprob, entropy, lse = head.rows.statistics(logits, target[rows], scale[rows])
            part = {name: values[rows] for name, values in zip(names.split(","), streams, strict=True)}
            value, extra, by_logprob, by_entropy = _differentiated(component, logprob, entropy, part)
            total += value
            sums += torch.stack([number.double() for number in extra])
            if any(needed):
                arguments = (logits, target[rows], scale[rows], lse, entropy, by_logprob, by_entropy, head.narrow)
                gradients.add(head.rows.gradient(*arguments), states, source_row[rows])
            chunks.append((logprob, entropy))
        of_head = gradients.result()
    logprob, entropy = (torch.cat(parts) for parts in zip(*chunks, strict=True))
    return total.to(head.dtype), sums, logprob, entropy, *of_head


def _differentiated(
    policy: Loss, logprob: Tensor, entropy: Tensor, streams: dict[str, Tensor]
) -> tuple[Tensor, list[Tensor], Tensor, Tensor | None]:
    """Return a loss and its metrics for some rows, with derivatives by log-prob and, if the loss reads it, entropy."""
    with _autograd():
        logprob.requires_grad_()
        entropy.requires_grad_(policy.needs_entropy_gradient)
        value, metrics = policy.evaluate(Tokens(logprob, entropy, streams))
        leaves = (logprob, entropy) if entropy.requires_grad else (logprob,)
        if value.requires_grad:
            derivatives = torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)
        else:
            derivatives = tuple(torch.zeros_like(leaf) for leaf in leaves)
        for leaf in leaves:
            leaf.requires_grad_(False)  # noqa: FBT003 - torch's own
    return value.detach(), list(metrics.values()), derivatives[0], derivatives[1] if len(derivatives) > 1 else None


@contextlib.contextmanager
def _autograd() -> Iterator[None]:
    """Enable ordinary autograd inside a custom torch operation; torch calls it without the autograd dispatch keys."""
    included, excluded = _dispatch_tls_local_include_set(), DispatchKeySet(DispatchKey.Undefined)
    with _ForceDispatchKeyGuard(included, excluded), torch.enable_grad():
        yield


@linear_logprob_and_lse.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, source_row: Tensor, target: Tensor, *arguments: Any) -> Any:
    del weight, bias, source_row, arguments
    return tuple(hidden.new_empty(target.shape, dtype=LMHead.dtypes(hidden)[0]) for _ in range(3))


@linear_logprob_gradient.register_fake
def _(hidden: Tensor, weight: Tensor, *arguments: Any) -> Any:
    return _empty_gradients(hidden, weight, arguments[-1], hidden.dtype)


@fused_loss.register_fake
def _(hidden: Tensor, weight: Tensor, bias: Tensor | None, source_row: Tensor, target: Tensor, *arguments: Any) -> Any:
    del bias, source_row
    *_, metrics, _, _, needed = arguments
    dtype, gradient_dtype = LMHead.dtypes(hidden)
    return (
        hidden.new_empty((), dtype=dtype),
        hidden.new_empty(metrics, dtype=torch.float64),
        *(hidden.new_empty(target.shape, dtype=dtype) for _ in range(2)),
        *_empty_gradients(hidden, weight, needed, gradient_dtype),
    )


def _empty_gradients(
    hidden: Tensor, weight: Tensor, needed: Sequence[bool], gradient_dtype: torch.dtype
) -> tuple[Tensor, ...]:
    by_hidden, by_weight, by_bias = needed
    return (
        hidden.new_empty(hidden.shape if by_hidden else (0,), dtype=gradient_dtype),
        weight.new_empty(weight.shape if by_weight else (0,), dtype=gradient_dtype),
        weight.new_empty(len(weight) if by_bias else 0, dtype=LMHead.dtypes(hidden)[0]),
    )


def _keep_pairs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *pairs, ctx.softcap, ctx.workspace = inputs
    _, entropy, lse = output
    ctx.save_for_backward(*pairs, entropy, lse)
    ctx.mark_non_differentiable(lse)
    ctx.set_materialize_grads(False)


def _pairs_backward(ctx: Any, by_logprob: Tensor | None, by_entropy: Tensor | None, _: None) -> tuple[Any, ...]:
    *pairs, entropy, lse = ctx.saved_tensors
    by_logprob = torch.zeros_like(entropy) if by_logprob is None else by_logprob
    needed = list(ctx.needs_input_grad[:3])
    gradients = linear_logprob_gradient(
        *pairs, entropy, lse, by_logprob, by_entropy, ctx.softcap, ctx.workspace, needed
    )
    returned = (
        gradient.to(pair.dtype) if is_needed else None
        for gradient, pair, is_needed in zip(gradients, pairs[:3], needed, strict=True)
    )
    return (*returned, None, None, None, None, None)


linear_logprob_and_lse.register_autograd(_pairs_backward, setup_context=_keep_pairs)


def _keep_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.needed = inputs[-1]
    ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs[:3]]
    ctx.streams = len(inputs[6])
    ctx.save_for_backward(*output[4:])
    ctx.mark_non_differentiable(*output[1:])
    ctx.set_materialize_grads(False)


def _scaled(ctx: Any, by_loss: Tensor | None, *_: None) -> tuple[Any, ...]:
    gradients = [
        _times(gradient, by_loss).to(dtype) if needed and by_loss is not None else None
        for gradient, dtype, needed in zip(ctx.saved_tensors, ctx.dtypes, ctx.needed, strict=True)
    ]
    return (*gradients, None, None, None, [None] * ctx.streams, None, None, None, None, None, None)


def _times(gradient: Tensor, by_loss: Tensor) -> Tensor:
    """Return a saved gradient times `by_loss`; the same tensor if `by_loss` is 1 and no later backward needs it."""
    # A compiler traces with its own tensors. On another device, reading the value would synchronise.
    known = type(gradient) is Tensor and by_loss.device.type == "cpu"
    if known and float(by_loss) == 1.0 and not _get_current_graph_task_keep_graph():
        return gradient
    return gradient * by_loss


fused_loss.register_autograd(_scaled, setup_context=_keep_gradients)


def known_loss(policy: Loss, more: tuple[str, ...] = ()) -> tuple[str, tuple[str, ...]]:
    """Return the name by which `fused_loss` finds a loss, and the names of its metrics; equal names mean equal losses.

    Args:
        policy: the loss.
        more: further streams of the pack that the metrics read.
    """
    name = f"{type(policy).__module__}.{policy!r}{''.join(more)}"
    if name not in LOSSES:
        nothing = torch.zeros(0)
        streams = dict.fromkeys((*policy.streams, "weight_kl", *more), nothing)
        LOSSES[name] = policy, tuple(policy.evaluate(Tokens(nothing, nothing, streams))[1])
    loss, names = LOSSES[name]
    if loss != policy:
        raise InvalidInputError(f"two different losses are both {name}; give their classes different names")
    return name, names


# A compiler may take the result as a constant. torch.compiler.assume_constant_result sets the same mark, but it imports
# the compiler, which takes longer than importing torch.
known_loss._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001
