"""Route the tokens of a pack to recorded experts instead of the experts that the model's routers choose."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.model.architecture import decoder_of
from agentrl_core.model.layouts import is_recomputed
from agentrl_core.model.routers import expert_weights, layers_of_routers, routers_of

_KNOWN: WeakSet[nn.Module] = WeakSet()
"""Routers for which `expert_weights` was verified to return the router's own weights."""


class RouteReplay:
    """Replaces the routers' choices by the recorded experts of a pack's tokens, one forward call at a time.

    Args:
        experts: `int16[T, layers * k]`; negative: unknown, so that the router chooses.
        routers: the routers of the model, in the order of its layers.
    """

    def __init__(self, experts: Tensor, routers: list[Any]) -> None:
        self._of_router = dict(zip(routers, experts.split([router.top_k for router in routers], dim=1), strict=True))
        self._thread = threading.get_ident()
        self._tokens: Tensor | None = None
        self._feeds = self._calls = 0
        self._is_open = False

    @property
    def is_whole(self) -> bool:
        """Whether every router was called in every forward; compiled code may skip hooks."""
        return self._calls >= self._feeds * len(self._of_router)

    def feed(self, tokens: Tensor | None) -> None:
        """Set the tokens of the pack that the next forward reads, row by row; None: all in order."""
        self._tokens = None if tokens is None else tokens.flatten()
        self._feeds += 1

    @contextmanager
    def hooked(self, routers: Iterable[Any]) -> Iterator[None]:
        """Replace the routers' choices in this thread, inside a `with` block."""
        self._thread, self._is_open = threading.get_ident(), True
        handles = [router.register_forward_hook(self.route) for router in routers]
        try:
            yield
        finally:
            self._is_open = False
            for handle in handles:
                handle.remove()

    @contextmanager
    def recomputed(self, layer: nn.Module) -> Iterator[None]:
        """Make a layer replay the same experts if the backward pass recomputes it after the block."""
        checkpoint: Any = getattr(layer, "_gradient_checkpointing_func", None)
        routers = [module for module in layer.modules() if module in self._of_router]
        if checkpoint is None or not routers:
            yield
            return

        def checkpointed(call: Callable[..., Any], *arguments: Any) -> Any:
            tokens = self._tokens

            def again(*inputs: Any) -> Any:
                if self._is_open:  # called in the forward pass, not recomputed
                    return call(*inputs)
                self._tokens = tokens
                with self.hooked(routers):
                    return call(*inputs)

            return checkpoint(again, *arguments)

        layer._gradient_checkpointing_func = checkpointed  # type: ignore[assignment]  # noqa: SLF001 -- as transformers sets it
        try:
            yield
        finally:
            layer._gradient_checkpointing_func = checkpoint  # noqa: SLF001

    def route(self, router: Any, _arguments: object, output: tuple[Tensor, Tensor, Tensor]) -> object:
        """Return a router's output with the recorded experts in place of its own: a forward hook."""
        if threading.get_ident() != self._thread:
            return output
        self._calls += 1
        logits, weights, own_experts = output
        _check_weights(router, logits, weights, own_experts)
        recorded = self._of_router[router]
        recorded = recorded if self._tokens is None else recorded.index_select(0, self._tokens)
        experts = torch.where(recorded >= 0, recorded.to(own_experts.dtype), own_experts)
        return logits, expert_weights(router, logits, experts).to(weights.dtype), experts


@contextmanager
def replayed_routes(experts: Tensor, inner: nn.Module) -> Iterator[RouteReplay]:
    """Route the tokens of a pack to its recorded experts (`Pack.routed_experts`) inside the block.

    Raises:
        UnsupportedError: the model has no known routers, or layers in torch's `CheckpointWrapper`.
        InvalidInputError: number or range of the recorded experts do not fit the model.
    """
    routers, name = routers_of(inner), type(inner).__name__
    if not routers:
        raise UnsupportedError(
            f"replay_routes: {name} has no router of experts that is known; leave replay_routes out of update.pack"
        )
    experts = _of_routers(experts, inner, routers)
    expected, width = sum(router.top_k for router in routers), experts.shape[1]
    fewest = min(router.num_experts for router in routers)
    largest = int(experts.max()) if len(experts) else -1
    if width != expected or largest >= fewest:
        problem = f"the pack records {width} experts per token, but {name} uses {expected}"
        if width == expected:
            problem = f"the pack records expert {largest}, but a layer of {name} has only experts 0 to {fewest - 1}"
        raise InvalidInputError(
            f"routed_experts: {problem}; give the model that generated the rollouts, or leave replay_routes out of "
            "update.pack"
        )
    if is_recomputed(inner) and torch.is_grad_enabled():
        raise UnsupportedError(
            f"replay_routes: layers of {name} are in torch's CheckpointWrapper, which would recompute them with other "
            "experts; call model.gradient_checkpointing_enable() instead of wrapping them"
        )
    replay = RouteReplay(experts, routers)
    with ExitStack() as stack:
        for module in inner.modules():
            if getattr(module, "gradient_checkpointing", False):
                stack.enter_context(replay.recomputed(module))
        stack.enter_context(replay.hooked(routers))
        yield replay
    if not replay.is_whole:
        raise UnsupportedError(
            f"replay_routes: not every router of {name} was called in each forward as a module (torch.compile leaves "
            "hooks out); give the model uncompiled, or leave replay_routes out of update.pack"
        )


def _of_routers(experts: Tensor, inner: Any, routers: list[Any]) -> Tensor:
    """Drop the entries of layers without a router, which vLLM and slime record as well."""
    layers, count = getattr(decoder_of(inner).config, "num_hidden_layers", 0), routers[0].top_k
    routed = layers_of_routers(inner)
    if len(routed) != len(routers) or len(routers) == layers or experts.shape[1] != layers * count:
        return experts
    return experts.view(-1, layers, count)[:, routed].flatten(1)


@torch.no_grad()
def _check_weights(router: Any, logits: Tensor, weights: Tensor, own_experts: Tensor) -> None:
    """Require that a router computes its weights from its logits as `expert_weights` does."""
    if router in _KNOWN:
        return
    expected = expert_weights(router, logits, own_experts).to(weights.dtype)
    if not torch.allclose(expected, weights, rtol=1e-2 if weights.dtype.itemsize < 4 else 1e-5, atol=1e-6):
        raise UnsupportedError(
            f"replay_routes: {type(router).__name__} weights its experts by a formula that is not known; leave "
            "replay_routes out of update.pack"
        )
    _KNOWN.add(router)
