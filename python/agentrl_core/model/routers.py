"""Routers of mixture-of-experts models: find them, trace the experts that they choose, and compute expert weights."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import UnsupportedError


def routers_of(model: nn.Module) -> list[Any]:
    """Return the routers of a causal model of Hugging Face in the order of its layers; empty if it has none."""
    names = ("TopKRouter", "TopkRouter")
    return [module for module in model.modules() if type(module).__name__.endswith(names)]


def layers_of_routers(model: nn.Module) -> list[int]:
    """Return the layer number of each router, from module names; routers whose name has no number are left out."""
    routers = set(routers_of(model))
    names = [name for name, module in model.named_modules() if module in routers]
    return [int(match[1]) for name in names if (match := re.search(r"(?:^|\.)layers\.(\d+)\.", name))]


def expert_weights(router: Any, logits: Tensor, experts: Tensor) -> Tensor:
    """Return the weights that a router gives to some experts of each token, from its logits, with gradients.

    Softmax routers (Qwen3-MoE, OLMoE, Mixtral) and sigmoid routers (DeepSeek V3) are known.

    Args:
        router: the module.
        logits: `[n, experts]`, its first output.
        experts: `int64[n, k]`.
    """
    normalises = getattr(router, "norm_topk_prob", True)
    if hasattr(router, "e_score_correction_bias"):
        weights = logits.sigmoid().gather(1, experts)
        if normalises:
            weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20)
        return weights * float(router.routed_scaling_factor)
    weights = torch.softmax(logits.float(), dim=-1).gather(1, experts)
    return weights / weights.sum(dim=-1, keepdim=True) if normalises else weights


class RouteTrace:
    """Records the experts that the routers of a model choose in its forwards.

    Args:
        model: a causal model with routers.

    Raises:
        UnsupportedError: the model has no known routers.
    """

    def __init__(self, model: nn.Module) -> None:
        self._routers = routers_of(model)
        if not self._routers:
            raise UnsupportedError(
                f"routed_experts: {type(model).__name__} has no router of experts that is known; leave the option out"
            )
        self._dtype = torch.uint8 if max(router.num_experts for router in self._routers) <= 256 else torch.int16

    @contextmanager
    def forward(self) -> Iterator[list[Tensor]]:
        """Trace one forward in this thread: the yielded list gets the experts `int64[tokens, k]` of each router."""
        thread, experts = threading.get_ident(), list[Tensor]()

        def keep(_router: nn.Module, _arguments: object, output: tuple[Tensor, Tensor, Tensor]) -> None:
            if threading.get_ident() == thread:
                experts.append(output[2])

        handles = [router.register_forward_hook(keep) for router in self._routers]
        try:
            yield experts
        finally:
            for handle in handles:
                handle.remove()

    def layer(self, found: list[Tensor], rows: int) -> tuple[Tensor, Tensor]:
        """Return traced experts in the form of keys and values of an additional layer of a KV cache.

        Args:
            found: experts traced by `forward`, `int64[rows * tokens, k]` each.
            rows: number of rows of the forward.

        Returns:
            `[rows, 1, tokens, layers * k]`, of uint8 or int16, and `[rows, 1, tokens, 0]`.

        Raises:
            UnsupportedError: not every router was called once.
        """
        if len(found) != len(self._routers):
            raise UnsupportedError(
                f"routed_experts: {len(found)} of {len(self._routers)} routers were called in a forward (torch.compile "
                "leaves hooks out); give the engine the model uncompiled, or leave the option out"
            )
        experts = torch.cat(found, dim=1).to(self._dtype)
        experts = experts.view(rows, 1, -1, experts.shape[1])
        return experts, experts[..., :0]
