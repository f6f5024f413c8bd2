"""Route the tokens of a pack to recorded experts instead of those that the model's routers choose."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.routers import expert_weights, routers_of

_KNOWN: WeakSet[nn.Module] = WeakSet()
"""Routers whose own weights were found to be those of `expert_weights`."""


class RouteReplay:
    """The recorded experts of a pack's tokens, given to the routers of a model feed by feed.

    Args:
        experts: `int16[T, layers * k]`; negative: unknown, so that the router chooses.
        routers: the routers of the model, in the order of its layers.
    """

    def __init__(self, experts: Tensor, routers: list[Any]) -> None:
        self._of_router = dict(zip(routers, experts.split([router.top_k for router in routers], dim=1), strict=True))
        self._thread = threading.get_ident()
        self._tokens: Tensor | None = None
        self._feeds = self._calls = 0

    @property
    def is_whole(self) -> bool:
        """Whether every router was called in every forward: compiled code may leave hooks out."""
        return self._calls >= self._feeds * len(self._of_router)

    def feed(self, tokens: Tensor | None) -> None:
        """Set which of the pack's tokens the next forward reads, row by row; None: all in order."""
        self._tokens = None if tokens is None else tokens.flatten()
        self._feeds += 1

    def route(self, router: Any, _arguments: object, output: tuple[Tensor, Tensor, Tensor]) -> object:
        """Return a router's output with the recorded experts: a forward hook."""
        if threading.get_ident() != self._thread:
            return output
        self._calls += 1
        logits, weights, own = output
        _check_weights(router, logits, weights, own)
        recorded = self._of_router[router]
        recorded = recorded if self._tokens is None else recorded.index_select(0, self._tokens)
        experts = torch.where(recorded >= 0, recorded.to(own.dtype), own)
        return logits, expert_weights(router, logits, experts).to(weights.dtype), experts


@contextmanager
def replayed_routes(experts: Tensor | None, inner: nn.Module) -> Iterator[RouteReplay | None]:
    """Route the tokens of a pack to its recorded experts (`Pack.routed_experts`) inside the block, if it has any.

    Raises:
        UnsupportedError: the model has no known routers, or layers that are recomputed in the backward pass.
        InvalidInputError: the recorded experts are not those of such a model.
    """
    if experts is None:
        yield None
        return
    routers, width = routers_of(inner), experts.shape[1]
    name = type(inner).__name__
    if not routers:
        raise UnsupportedError(
            f"replay_routes: {name} has no router of experts that is known; leave replay_routes out of update.pack"
        )
    wanted = sum(router.top_k for router in routers)
    fewest = min(router.num_experts for router in routers)
    largest = int(experts.max()) if len(experts) else -1
    if width != wanted or largest >= fewest:
        raise InvalidInputError(
            f"routed_experts: the pack has {width} experts a token, numbered up to {largest}, but {name} chooses "
            f"{wanted} in {len(routers)} layers, of {fewest} in each; give the model that generated the rollouts, or "
            "leave replay_routes out of update.pack"
        )
    recomputes = any(getattr(module, "gradient_checkpointing", False) for module in inner.modules())
    if recomputes and torch.is_grad_enabled() and inner.training:
        raise UnsupportedError(
            f"replay_routes: {name} recomputes its layers in the backward pass, where routers would choose anew; call "
            "model.gradient_checkpointing_disable(), or leave replay_routes out of update.pack"
        )
    replay = RouteReplay(experts, routers)
    handles = [router.register_forward_hook(replay.route) for router in routers]
    try:
        yield replay
    finally:
        for handle in handles:
            handle.remove()
    if not replay.is_whole:
        raise UnsupportedError(
            f"replay_routes: not every router of {name} was called in each forward as a module (torch.compile leaves "
            "hooks out); give the model uncompiled, or leave replay_routes out of update.pack"
        )


@torch.no_grad()
def _check_weights(router: Any, logits: Tensor, weights: Tensor, own: Tensor) -> None:
    """Refuse a router whose weights follow from its logits in another way."""
    if router in _KNOWN:
        return
    found = expert_weights(router, logits, own).to(weights.dtype)
    if not torch.allclose(found, weights, rtol=1e-2 if weights.dtype.itemsize < 4 else 1e-5, atol=1e-6):
        raise UnsupportedError(
            f"replay_routes: {type(router).__name__} weights its experts by a formula that is not known; leave "
            "replay_routes out of update.pack"
        )
    _KNOWN.add(router)
