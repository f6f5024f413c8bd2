"""An engine in an actor of a Ray cluster."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from agentrl_core._util.ray_cluster import connected
from agentrl_core.engine.base import Engine, Request, Segment, aborted, check_request, check_version
from agentrl_core.engine.chat import Chat
from agentrl_core.exceptions import EngineError, InvalidInputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from agentrl_core.engine.policy_weights import PolicyWeights

_MOST_REQUESTS = 100_000

Packed = list[tuple[str, Any, str, tuple[int, ...]]]
"""Weights as bytes, which Ray shares without a copy: name, bytes, type and shape. Tied weights have the same bytes."""


class RayActor:
    """Run an engine in a Ray actor, on any machine of the cluster with free resources.

    New weights go through Ray's object store once, and stay there. If the actor dies, requests fail with an
    `EngineError` and another actor with the same weights and version replaces it. The collector retries failed
    requests, so no token is lost or duplicated.

    Args:
        make: creates the engine, in the actor.
        options: Ray options of the actor: `{"num_gpus": 1}`.

    Raises:
        MissingDependencyError: ray is not installed.
        InvalidInputError: Ray is not connected to a cluster.
        EngineError: the actor could not create the engine.

    Example:
        >>> from agentrl_core import engine
        >>> engine.RayActor(lambda: engine.Transformers(model, tokenizer), options={"num_gpus": 1})
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        agentrl_core.exceptions.InvalidInputError: engine.RayActor runs in a cluster, but Ray is not connected to ...
    """

    shares_parameters = False

    def __init__(self, make: Callable[[], Engine], *, options: Mapping[str, Any] | None = None) -> None:
        self._ray = connected("engine.RayActor runs in a cluster")
        self._make = make
        self._options = {"max_concurrency": _MOST_REQUESTS, **(options or {})}
        self._numbers = itertools.count()
        self._asked: dict[Request, list[int]] = {}
        self._weights: tuple[Any, int] | None = None
        self._closed = False
        self._actor = self._start()
        chat, size, estimator, version, precision, images = self._wait(self._actor.about.remote())
        self.chat: Chat = chat
        self.vocabulary_size: int = size
        self.entropy_estimator: str = estimator
        self.policy_version: int = version
        self.precision: int | None = precision
        self.takes_images: bool = images

    async def generate(self, request: Request) -> Segment:
        """Generate the segment of one request; cancelling the wait gives it up.

        Raises:
            InvalidInputError: what the engine refuses; or this one is closed.
            EngineError: the engine failed at it, or its actor died.
        """
        self._check_open("generate")
        check_request(request, self.vocabulary_size, takes_images=self.takes_images)
        number, actor = next(self._numbers), self._actor
        self._asked.setdefault(request, []).append(number)
        try:
            return await actor.generate.remote(number, request)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            actor.abort.remote(number)
            raise
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise self._replaced(actor, error) from error
        finally:
            self._asked[request].remove(number)
            if not self._asked[request]:
                del self._asked[request]

    def abort(self, request: Request) -> None:
        """End a request: its `generate` soon returns exactly what there was."""
        for number in self._asked.get(request, ()):
            self._actor.abort.remote(number)

    def update_weights(self, model: nn.Module | Mapping[str, torch.Tensor], version: int) -> None:
        """Sample from `model`'s weights from now on and stamp segments with `version`.

        Adapters are merged into a copy of the weights; other ranks call `engine.send_weights`.

        Raises:
            InvalidInputError: the model does not fit the engine's; or this one is closed.
            EngineError: the actor died.
        """
        from agentrl_core.engine.policy_weights import PolicyWeights

        with PolicyWeights(model) as policy:
            self._check_open("update_weights")
            check_version(version)
            weights = self._ray.put(_packed(policy)), version
            self._wait(self._actor.update_weights.remote(*weights))
        # A new actor gets these.
        self._weights, self.policy_version = weights, version

    def close(self) -> None:
        """End the actor; running segments end as aborted. More than once does no harm."""
        if self._closed or not self._ray.is_initialized():
            return
        self._closed = True
        try:
            self._ray.get(self._actor.close.remote())
        except self._ray.exceptions.RayError:
            return  # it is dead already
        self._ray.kill(self._actor)

    def _start(self) -> Any:
        # With its weights from the beginning: Ray keeps no order of what comes after.
        weights = self._weights or (None, 0)
        return self._ray.remote(_EngineActor).options(**self._options).remote(self._make, *weights)

    def _replaced(self, actor: Any, error: Exception) -> EngineError:
        """Return the error of a dead actor, and replace it."""
        if actor is self._actor and not self._closed:
            self._actor = self._start()
        return EngineError(f"generate: the actor of the engine died ({type(error).__name__}); another takes its place")

    def _wait(self, answer: Any) -> Any:
        actor = self._actor
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise self._replaced(actor, error) from error

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise InvalidInputError(f"{method}: this RayActor is closed; make another")


class _EngineActor:
    """An engine inside a Ray actor."""

    def __init__(self, make: Callable[[], Engine], packed: Packed | None, version: int) -> None:
        self._engine = make()
        if packed is not None:
            self._engine.update_weights(_unpacked(packed), version)
        self._requests: dict[int, Request] = {}
        self._aborted: set[int] = set()
        """Requests that have not come yet: Ray keeps no order."""
        self._ready = asyncio.Lock()
        """Held while weights are replaced: who asks later gets the new ones."""

    async def about(self) -> tuple[Chat, int, str, int, int | None, bool]:
        """Properties of the remote engine."""
        engine, precision = self._engine, getattr(self._engine, "precision", None)
        images = bool(getattr(engine, "takes_images", False))
        return engine.chat, engine.vocabulary_size, engine.entropy_estimator, engine.policy_version, precision, images

    async def generate(self, number: int, request: Request) -> Segment:
        """See `Engine`."""
        async with self._ready:
            pass
        if number in self._aborted:
            self._aborted.remove(number)
            return aborted(request, self._engine.policy_version)
        self._requests[number] = request
        try:
            return await self._engine.generate(request)
        finally:
            del self._requests[number]

    async def abort(self, number: int) -> None:
        """See `Engine`."""
        if number in self._requests:
            self._engine.abort(self._requests[number])
        else:
            self._aborted.add(number)

    async def update_weights(self, packed: Packed, version: int) -> None:
        """See `Engine`."""
        async with self._ready:
            await asyncio.to_thread(self._engine.update_weights, _unpacked(packed), version)

    async def close(self) -> None:
        """See `Engine`."""
        await asyncio.to_thread(self._engine.close)


def _packed(weights: PolicyWeights) -> Packed:
    """Return the weights of a policy, to be sent."""
    import torch

    found: Packed = []
    last: torch.Tensor | None = None
    for name, weight in weights.read():
        if weight is not last:  # else tied to the one before, whose bytes it shares
            raw = weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        last = weight
        found.append((name, raw, str(weight.dtype).removeprefix("torch."), tuple(weight.shape)))
    return found


def _unpacked(packed: Packed) -> dict[str, torch.Tensor]:
    """Return a state dict of weights that were sent."""
    import torch

    found: dict[str, torch.Tensor] = {}
    last: tuple[Any, torch.Tensor] | None = None
    for name, raw, kind, shape in packed:
        if last is None or last[0] is not raw:
            # Copy: Ray's shared memory is read-only, which torch tensors cannot express.
            last = raw, torch.from_numpy(raw.copy()).view(getattr(torch, kind)).reshape(shape)
        found[name] = last[1]
    return found
