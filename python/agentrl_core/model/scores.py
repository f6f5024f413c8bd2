"""Log-probs, entropies and other answers of rows of logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from agentrl_core.exceptions import UnsupportedError
from agentrl_core.model.comparisons import Comparison, is_compared
from agentrl_core.model.images import IMPOSSIBLE
from agentrl_core.model.logit_statistics import ANSWERS_OF_LOGITS

LOGITS_AT_ONCE = 2**27  # 512 MiB of fp32; beyond it logits are scored in chunks that the backward pass recomputes
VALUES = ("value", "value_logits")
VALUE_HEAD = "value_head"
"""Name of the module that makes values of hidden states; no engine samples from it."""
ANSWERS = (*VALUES, *ANSWERS_OF_LOGITS)
"""Outputs of `Pack.run` beside log-probs and entropies, if they are requested."""


def score(
    logits: Tensor,
    target: Tensor,
    scale: Tensor,
    *columns: Tensor,
    entropy_gradient: bool,
    outputs: Sequence[str],
    comparisons: Sequence[Comparison] = (),
    never: Tensor | None = None,
) -> tuple[Tensor, ...]:
    """Return log-prob of the target, entropy, `outputs` and comparisons of logits `[R, V]` times `scale`.

    Args:
        logits: fp32 or fp64.
        target: `int64[R]`.
        scale: `[R]`, the inverse temperatures.
        columns: the rows of each comparison's column.
        entropy_gradient: whether the entropy can be differentiated.
        outputs: names of `ANSWERS_OF_LOGITS`.
        comparisons: what is compared.
        never: `int64[k]`, tokens that have probability 0; None: all have their own.
    """
    scale = scale.to(logits.dtype)
    logits = logits * scale[:, None]
    if never is not None:
        logits = logits.index_fill(1, never, IMPOSSIBLE)
    largest = logits.detach().amax(dim=-1, keepdim=True)
    shifted = logits - largest
    logprob = shifted.gather(1, target[:, None]).squeeze(1) - shifted.logsumexp(dim=-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        exponential = shifted.exp()
        total = exponential.sum(dim=-1)
        entropy = total.log() - (exponential * shifted).sum(dim=-1) / total
    answers = {name: ANSWERS_OF_LOGITS[name](shifted) for name in outputs}  # all but one are the same of shifted logits
    if never is not None and "mean_logprob" in answers:
        possible = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device).index_fill(0, never, 0)
        answers["mean_logprob"] = ANSWERS_OF_LOGITS["mean_logprob"](shifted[:, possible])
    if "soft_value" in answers:
        answers["soft_value"] = (answers["soft_value"] + largest.squeeze(1)) / scale
    pairs = zip(comparisons, columns, strict=True)
    return logprob, entropy, *answers.values(), *(each.compare(shifted, column, scale) for each, column in pairs)


def in_chunks(function: Callable[..., tuple[Tensor, ...]], size: int, rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return `function(*rows)`, computed `size` rows at a time; the backward pass computes them again."""
    count = len(rows[0])
    if count <= size:
        return function(*rows)
    parts = []
    for begin in range(0, count, size):
        part = [each[begin : begin + size] for each in rows]
        if torch.is_grad_enabled():
            parts.append(cast("tuple[Tensor, ...]", checkpoint(function, *part, use_reentrant=False)))
        else:
            parts.append(function(*part))
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))


def value_head_of(outer: nn.Module, inner: nn.Module, outputs: Sequence[str]) -> nn.Module | None:
    """Return the module `value_head` of a model or of one of its wrappers, if `value` or `value_logits` is requested.

    Raises:
        UnsupportedError: an unknown output is requested, or there is no value head.
    """
    for name in outputs:
        if name not in ANSWERS and not is_compared(name):
            raise UnsupportedError(
                f"outputs: pack.run cannot give the answer {name!r}, only {', '.join(ANSWERS)}; compute it and add it: "
                f"dataclasses.replace(pack.run(model, outputs=()), {name}=...)"
            )
    asked = next((name for name in outputs if name in VALUES), None)
    if asked is None:
        return None
    for part in outer.modules():
        head = part._modules.get(VALUE_HEAD)  # noqa: SLF001 - wrappers pass other attributes on
        if head is not None and (part is inner or any(each is inner for each in part.modules())):
            return head
    raise UnsupportedError(
        f"{type(inner).__name__} has no value head for the answer {asked!r}; give it one before it is wrapped: "
        "model.value_head = torch.nn.Linear(model.config.hidden_size, 1)"
    )
