"""An engine in actors of a Ray cluster."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentrl_core._util.ray_cluster import connected, missing_room
from agentrl_core.engine.base import Engine, Request, Segment, aborted, check_request, check_version
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.group_routing import GroupHomes
from agentrl_core.exceptions import EngineError, InvalidInputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from agentrl_core.engine.policy_weights import PolicyWeights

_MOST_REQUESTS = 100_000
_log = logging.getLogger(__name__)

Packed = list[tuple[str, Any, str, tuple[int, ...]]]
"""Weights as bytes, which Ray shares without a copy: name, bytes, type and shape. Tied weights have the same bytes."""


@dataclass(eq=False)
class _PoolMember:
    """An actor of the pool, and the number of its running requests."""

    actor: Any
    busy: int = 0


class RayActor:
    """Runs an engine in a Ray actor, or in a pool of them, on any machine of the cluster with free resources.

    Requests of one `Request.group` go to one actor, whose prefix cache has their common prefix; the first request of a
    group goes to the actor with the fewest requests.

    New weights are put into Ray's object store once, and stay there. If an actor dies, its requests fail with an
    `EngineError` and another actor with the same weights and version replaces it. The collector retries failed
    requests, so no token is lost or duplicated. If the nodes of the cluster have no room for all actors, some wait for
    a node, which the logger `agentrl_core.engine.ray_actor` reports.

    Args:
        make: creates the engine, in each actor.
        options: Ray options of each actor: `{"num_gpus": 1}`.
        count: number of actors.

    Raises:
        MissingDependencyError: ray is not installed.
        InvalidInputError: Ray is not connected to a cluster; `count` is below 1.
        EngineError: an actor could not create the engine, or the engines have different versions of the weights.

    Example:
        >>> from agentrl_core import engine
        >>> engine.RayActor(lambda: engine.Transformers(model, tokenizer), options={"num_gpus": 1})
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        agentrl_core.exceptions.InvalidInputError: engine.RayActor runs in a cluster, but Ray is not connected to ...
    """

    shares_parameters = False

    def __init__(self, make: Callable[[], Engine], *, options: Mapping[str, Any] | None = None, count: int = 1) -> None:
        self._ray = connected("engine.RayActor runs in a cluster")
        if count < 1:
            raise InvalidInputError(f"RayActor: count is {count}; give the number of actors, at least 1")
        self._make = make
        self._options = {"max_concurrency": _MOST_REQUESTS, **(options or {})}
        self._numbers = itertools.count()
        self._open_requests: dict[Request, list[tuple[int, Any]]] = {}
        self._weights: tuple[Any, int] | None = None
        self._closed = False
        self._homes: GroupHomes[_PoolMember] = GroupHomes()
        self._report_missing_room(count)
        self._pool = [_PoolMember(self._start()) for _ in range(count)]
        about = [member.actor.about.remote() for member in self._pool]
        descriptions = [self._wait(member, answer) for member, answer in zip(self._pool, about, strict=True)]
        versions = {each[3] for each in descriptions}
        if len(versions) > 1:
            raise EngineError(
                f"RayActor: the engines have the versions {sorted(versions)}; return engines of one version from make()"
            )
        chat, size, estimator, version, precision, images = descriptions[0]
        self.chat: Chat = chat
        self.vocabulary_size: int = size
        self.entropy_estimator: str = estimator
        self.policy_version: int = version
        self.precision: int | None = precision
        self.takes_images: bool = images

    async def generate(self, request: Request) -> Segment:
        """Generate the segment of one request in an actor; cancelling the caller aborts the request.

        Raises:
            InvalidInputError: the engine refuses the request, or this engine is closed.
            EngineError: the engine failed, or its actor died.
        """
        self._check_open("generate")
        check_request(request, self.vocabulary_size, takes_images=self.takes_images)
        member = self._homes.choose(request.group, self._pool, load=lambda member: member.busy) or self._pool[0]
        number, actor = next(self._numbers), member.actor
        entry = number, actor
        self._open_requests.setdefault(request, []).append(entry)
        member.busy += 1
        try:
            return await actor.generate.remote(number, request)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            actor.abort.remote(number)
            raise
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise self._replaced(member, actor, error, "generate") from error
        finally:
            member.busy -= 1
            self._open_requests[request].remove(entry)
            if not self._open_requests[request]:
                del self._open_requests[request]

    def abort(self, request: Request) -> None:
        """End a request; its `generate` soon returns the tokens so far."""
        for number, actor in self._open_requests.get(request, ()):
            actor.abort.remote(number)

    def update_weights(self, model: nn.Module | Mapping[str, torch.Tensor], version: int) -> None:
        """Sample from `model`'s weights from now on and stamp segments with `version`.

        Adapters are merged into a copy of the weights; other ranks call `engine.send_weights`.

        Raises:
            InvalidInputError: the model does not match the engine's, or this engine is closed.
            EngineError: all actors died. If only some died, others with the new weights replace them.
        """
        from agentrl_core.engine.policy_weights import PolicyWeights

        with PolicyWeights(model) as policy:
            self._check_open("update_weights")
            check_version(version)
            weights = self._ray.put(_packed(policy)), version
            answers = [(member, member.actor, member.actor.update_weights.remote(*weights)) for member in self._pool]
            dead: list[tuple[_PoolMember, Any, Exception]] = []
            for member, actor, answer in answers:
                try:
                    self._ray.get(answer)
                except self._ray.exceptions.RayTaskError as error:
                    raise error.cause from None
                except self._ray.exceptions.RayError as error:
                    dead.append((member, actor, error))
        if len(dead) < len(self._pool):  # a new actor gets these
            self._weights, self.policy_version = weights, version
        failures = [self._replaced(*failure, "update_weights") for failure in dead]
        if len(dead) == len(self._pool):
            raise failures[0]

    def close(self) -> None:
        """End the actors; running segments end as aborted. A second call does nothing."""
        if self._closed or not self._ray.is_initialized():
            return
        self._closed = True
        for actor, closed in [(member.actor, member.actor.close.remote()) for member in self._pool]:
            with contextlib.suppress(self._ray.exceptions.RayError):  # it is dead already
                self._ray.get(closed)
                self._ray.kill(actor)

    def _start(self) -> Any:
        # The weights are given at creation, since Ray does not keep the order of later calls.
        weights = self._weights or (None, 0)
        return self._ray.remote(_EngineActor).options(**self._options).remote(self._make, *weights)

    def _report_missing_room(self, count: int) -> None:
        """Log if the cluster has no room for `count` such actors, so that some wait for a node."""
        if missing := missing_room(self._ray.nodes(), self._options, count):
            _log.warning("engine.RayActor waits for %s; add nodes, or give a smaller count or smaller options", missing)

    def _replaced(self, member: _PoolMember, actor: Any, error: Exception, method: str) -> EngineError:
        """Replace a dead actor, and return the error of the method that needed it."""
        if actor is member.actor and not self._closed:
            self._report_missing_room(len(self._pool))
            member.actor = self._start()
        remedy = "read its log in Ray, and correct make() or options"
        if method != "RayActor":
            again = "send the request again" if method == "generate" else "call update_weights again"
            remedy = "this RayActor is closed: make another" if self._closed else f"a new one replaces it: {again}"
        return EngineError(f"{method}: the actor of the engine died ({type(error).__name__}); {remedy}")

    def _wait(self, member: _PoolMember, answer: Any) -> Any:
        actor = member.actor
        try:
            return self._ray.get(answer)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            raise self._replaced(member, actor, error, "RayActor") from error

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
        """Aborted requests that have not arrived yet, since Ray does not keep the order of calls."""
        self._ready = asyncio.Lock()
        """Held while weights are replaced, so that later requests use the new ones."""

    async def about(self) -> tuple[Chat, int, str, int, int | None, bool]:
        """Return properties of the engine: chat, vocabulary size, entropy estimator, version, precision, images."""
        engine, precision = self._engine, getattr(self._engine, "precision", None)
        images = bool(getattr(engine, "takes_images", False))
        return engine.chat, engine.vocabulary_size, engine.entropy_estimator, engine.policy_version, precision, images

    async def generate(self, number: int, request: Request) -> Segment:
        """Generate the segment of a request, which `abort` finds by its number."""
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
        """End the request with this number, even if it arrives later."""
        if number in self._requests:
            self._engine.abort(self._requests[number])
        else:
            self._aborted.add(number)

    async def update_weights(self, packed: Packed, version: int) -> None:
        """Load packed weights into the engine, in a thread."""
        async with self._ready:
            await asyncio.to_thread(self._engine.update_weights, _unpacked(packed), version)

    async def close(self) -> None:
        """Close the engine, in a thread."""
        await asyncio.to_thread(self._engine.close)


def _packed(weights: PolicyWeights) -> Packed:
    """Return the weights of a policy as bytes for Ray's object store."""
    import torch

    packed: Packed = []
    last: torch.Tensor | None = None
    for name, weight in weights.read():
        if weight is not last:  # otherwise tied to the previous weight, whose bytes it shares
            raw = weight.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        last = weight
        packed.append((name, raw, str(weight.dtype).removeprefix("torch."), tuple(weight.shape)))
    return packed


def _unpacked(packed: Packed) -> dict[str, torch.Tensor]:
    """Return a state dict from packed weights."""
    import torch

    state_dict: dict[str, torch.Tensor] = {}
    last: tuple[Any, torch.Tensor] | None = None
    for name, raw, kind, shape in packed:
        if last is None or last[0] is not raw:
            # Copy: Ray's shared memory is read-only, which torch tensors cannot express.
            last = raw, torch.from_numpy(raw.copy()).view(getattr(torch, kind)).reshape(shape)
        state_dict[name] = last[1]
    return state_dict
