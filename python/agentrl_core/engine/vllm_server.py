"""Generation by running vLLM servers, over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agentrl_core._util.files import UNFINISHED, new_folder
from agentrl_core.engine import vllm_output
from agentrl_core.engine.base import Request, Segment, aborted, check_request, check_version
from agentrl_core.engine.chat import Chat
from agentrl_core.engine.checkpoint_folder import write_checkpoint
from agentrl_core.engine.group_routing import GroupHomes
from agentrl_core.engine.policy_weights import PolicyWeights
from agentrl_core.engine.vllm_api import VllmApi
from agentrl_core.engine.vllm_lora import can_send_adapter, write_adapter
from agentrl_core.engine.weight_layout import check_weights, model_of_config, weights_to_load
from agentrl_core.exceptions import (
    AgentRLError,
    AgentRLWarning,
    EngineError,
    InvalidInputError,
    MissingDependencyError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase, ProcessorMixin

    from agentrl_core.engine.vllm_images import VllmImages

_Answer = TypeVar("_Answer")
_log = logging.getLogger(__name__)
# After the first server has opened, the others have this many seconds to open.
_OPENING_SECONDS = 10.0
# A server that does not respond is retried after one second, then after twice as many, and so on up to this.
_LONGEST_PAUSE = 10.0
# The most times that a request is retried after its servers failed and recovered.
_ROUNDS = 3
_LOOK_SECONDS = 0.1


@dataclass(eq=False)
class _ServerRequest:
    """A request with a waiting caller."""

    request: Request
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    server: VllmApi | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    leaves: bool = False
    """True if the request was aborted, so that it ends with its tokens so far."""


class VllmServer:
    r"""Samples from one or several running vLLM servers: token ids in, token ids and log-probabilities out.

    For a trainer on other GPUs than the engines, or on another machine. Start each server with

        VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --logprobs-mode processed_logprobs --enable-scale-out \
            --enable-prompt-tokens-details --worker-extension-cls agentrl_core.engine.vllm_worker.VllmWorker

    (`python -m vllm.entrypoints.openai.api_server --model MODEL` for the CPU build, which has no `vllm` command).
    `docs/engines.md` has the whole example.

    Routes, as of the CPU server of vLLM 0.32. `/inference/v1/generate` takes token ids, and returns ids,
    log-probabilities and the version of the weights of each token; `--enable-scale-out` enables it. `/v1/completions`
    with `return_token_ids` returns the same numbers without the version, so wrong weights would not be noticed: it is
    not used. `/inference/v1/abort_requests` ends a request, which then returns its tokens so far; closing the
    connection also ends it, but loses the tokens, so only cancelled requests do that. `/pause` and `/resume` enclose an
    update of the weights. On a CPU, vLLM's `reload_weights` by `/collective_rpc` keeps the old weights of a head that
    is tied to the embedding, and it ends the server if the folder does not exist, so `VllmWorker` loads the weights
    instead. vLLM's faster transfers of weights (NCCL, CUDA IPC) need GPUs and are not used.

    Requests of one `Request.group` go to one server, whose prefix cache has their common prefix; the first request of a
    group goes to the server with the fewest requests.

    The engine starts if any server responds. A server that does not respond, now or later, is left out and retried for
    `patience` seconds, while its requests go to the others; the logger `agentrl_core.engine.vllm_server` reports that.
    A restarted server gets the weights of `policy_version` from the folder before it is used again. If no server is
    left, requests wait, and fail with an `EngineError` after all servers are given up.

    Without a folder, another process, such as the trainer's engine, sends the weights to the servers: each segment has
    the version that its server reports, and `policy_version` follows. So several collectors can sample from servers
    that one trainer updates (`Collector(rollout_workers=...)`). Adapters need an engine with a folder.

    With a processor as the tokenizer, the engine supports images: a request to the server has one placeholder for each
    image, which the server expands, and the expanded tokens must equal those of the request. Start the servers without
    `--skip-tokenizer-init` in this case.

    When weights are replaced, running segments end as aborted with the old version, and new requests wait. Entropies
    are those of `Vllm`; they take about 700 bytes of JSON for each token, for the ten most likely tokens.

    Args:
        urls: URL of a server, "http://host:8000", or several URLs.
        tokenizer: the model's tokenizer with a chat template; or its processor if it supports images, loaded from the
            model's folder.
        folder: folder shared by the trainer and all servers, to which `update_weights` writes a checkpoint; None:
            another process updates the weights, or none does.
        entropies: whether to estimate entropies; without them, responses are smaller (`entropy_estimator` is "none").
        seconds: time limit for a segment, after which the server counts as failed.
        patience: seconds for which a server that does not respond is retried.
        precision: bits per weight on the servers, which do not report it (`rollout.RecordPrecision` records it).
        chat_template_kwargs: options of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        MissingDependencyError: httpx is not installed.
        EngineError: no server responds.
        InvalidInputError: log-probabilities are not processed; servers have different versions.
        UnsupportedError: a server has no route for tokens; the processor's folder has no model config.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> _, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> engine.VllmServer("http://127.0.0.1:9", tokenizer)  # nobody listens there
        Traceback (most recent call last):
        agentrl_core.exceptions.EngineError: VllmServer: http://127.0.0.1:9 does not answer ...
    """

    shares_parameters = False

    def __init__(
        self,
        urls: str | Sequence[str],
        tokenizer: PreTrainedTokenizerBase | ProcessorMixin,
        *,
        folder: str | os.PathLike[str] | None = None,
        entropies: bool = True,
        seconds: float = 600.0,
        patience: float = 600.0,
        precision: int | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        try:
            import httpx  # noqa: F401 -- checks that it is installed
        except ImportError as error:
            raise MissingDependencyError("engine.VllmServer needs httpx: pip install 'agentrl-core[server]'") from error
        urls = [urls] if isinstance(urls, str) else list(urls)
        if not urls:
            raise InvalidInputError("VllmServer: urls is empty; give the address of at least one server")
        for name, value in (("seconds", seconds), ("patience", patience)):
            if value <= 0:
                raise InvalidInputError(f"VllmServer: {name} is {value}; give a positive number")
        self.precision = precision
        self.chat = Chat(tokenizer, chat_template_kwargs)
        self.vocabulary_size = len(self.chat.tokenizer)
        self.takes_images = hasattr(tokenizer, "image_processor")
        images = _images_of(tokenizer, self.chat.tokenizer) if self.takes_images else None
        self.entropy_estimator = vllm_output.ENTROPY_ESTIMATOR if entropies else "none"
        self._folder = None if folder is None else Path(folder).absolute()
        self._process = os.getpid()
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="VllmServer", daemon=True)
        self._thread.start()
        self._stop = weakref.finalize(self, self._loop.call_soon_threadsafe, self._loop.stop)
        self._lock = threading.Lock()
        self._open_requests: dict[Request, list[_ServerRequest]] = {}
        """Waiting requests, under the lock."""
        # State that only the event loop uses.
        self._servers = [VllmApi(url, seconds, images) for url in urls]
        self._homes: GroupHomes[VllmApi] = GroupHomes()
        self._aborting: set[asyncio.Task[None]] = set()
        self._can_generate = asyncio.Event()
        """Unset while weights are replaced."""
        self._can_generate.set()
        self._patience = patience
        self._returning: dict[VllmApi, asyncio.Task[None]] = {}
        """Servers that do not respond, each with the task that retries it."""
        self._loading = asyncio.Lock()
        """Held while servers load weights."""
        self._base: tuple[tuple[object, ...], Path] | None = None
        """The stamp and the folder of the servers' base weights, if they have an adapter."""
        try:
            self._wait(self._open())
        except BaseException:
            self.close()
            raise
        self.context_tokens = min(server.context_tokens for server in self._servers if server.context_tokens)
        """Most tokens of a request and its segment together."""

    async def generate(self, request: Request) -> Segment:
        """Generate the segment of one request; cancelling the caller also cancels it on the server.

        Raises:
            InvalidInputError: the value is not a request, or the servers refuse it; the engine is closed.
            UnsupportedError: the sampling has `by_entropy`.
            EngineError: no server with the right weights responded.
        """
        self._check_open("generate")
        check_request(request, self.vocabulary_size, takes_images=self.takes_images)
        if request.sampling.by_entropy is not None:
            raise UnsupportedError(
                "generate: by_entropy is not supported by vLLM servers; sample with engine.Vllm or engine.Transformers"
            )
        vllm_output.check(request, self.context_tokens, "start the servers with a larger --max-model-len")
        entry = _ServerRequest(request)
        with self._lock:  # before the loop runs, so that an abort finds the request in any case
            self._open_requests.setdefault(request, []).append(entry)
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._run_entry(entry), self._loop))
        finally:
            with self._lock:
                same = self._open_requests[request]
                same.remove(entry)
                if not same:
                    del self._open_requests[request]

    def abort(self, request: Request) -> None:
        """End a request: its `generate` soon returns the tokens so far."""
        if not self._closed and self._process == os.getpid():
            self._loop.call_soon_threadsafe(self._leave, request)

    def update_weights(self, model: nn.Module | Mapping[str, Tensor], version: int) -> None:
        """Send `model`'s weights to the servers through the shared folder; they sample from them as `version`.

        The folder of a version is a complete checkpoint: weights, config, generation config, tokenizer and chat
        template. If all servers run with `--enable-lora`, the folder of a LoRA policy only has its adapter, and another
        folder has a checkpoint of the base weights, rewritten whenever they change; see `Vllm`. Sharded weights are
        gathered one at a time; the other ranks must call `engine.send_weights` at the same time. A server that fails to
        load them is left out, with an AgentRLWarning, until it responds and has the weights.

        Args:
            model: a causal model, bare or in its wrappers; or its state dict, with the config of the previous version,
                or of the tokenizer's folder.
            version: version of the weights, at least 0.

        Raises:
            InvalidInputError: there is no folder, or a server cannot read it; a weight is not finite; the model cannot
                be saved, or its config is unknown.
            UnsupportedError: a server cannot load weights.
            EngineError: no server loaded the weights.
        """
        with PolicyWeights(model) as weights:
            self._check_open("update_weights")
            if self._folder is None:
                raise InvalidInputError(
                    "update_weights: this VllmServer has no folder for the weights; make another VllmServer with "
                    "folder= set to a folder that its servers can read"
                )
            check_version(version)
            for unfinished in self._folder.glob(f".*{UNFINISHED}"):
                shutil.rmtree(unfinished, ignore_errors=True)
            self._folder.mkdir(parents=True, exist_ok=True)
            path, before = (self._folder / f"version-{number}" for number in (version, self.policy_version))
            base, old_base = None, self._base
            if can_send_adapter(weights, self._wait(self._largest_rank())):
                base = self._base_of(weights, version)
                check_weights(weights, None, "adapter")
                self._write(path, lambda part: write_adapter(part, weights))
            else:
                check_weights(weights, None)
                owner, named_weights = self._model_of(weights), weights_to_load(weights, None)
                self._write(path, lambda part: write_checkpoint(part, owner, named_weights, self.chat.tokenizer))
            try:
                failures = self._wait(self._replace(str(path), version, None if base is None else str(base[1])))
            except AgentRLError:
                if base is not None and base != old_base:
                    shutil.rmtree(base[1], ignore_errors=True)
                raise
            self._base = base
        for old, new in ((before, path), (old_base and old_base[1], base and base[1])):
            if old is not None and old != new:
                shutil.rmtree(old, ignore_errors=True)
        for failure in failures:
            warnings.warn(f"a server is left out until it answers again: {failure}", AgentRLWarning, stacklevel=2)

    def refresh(self) -> None:
        """Read the version of the weights that another process sent to the servers; with `folder`, do nothing.

        Each segment also updates `policy_version`. An engine with a folder has the version that it sent.

        Raises:
            EngineError: no server responds.
        """
        self._check_open("refresh")
        if self._folder is None:
            self._wait(self._open())

    def close(self) -> None:
        """Disconnect from the servers, which keep running; running segments end as aborted. Idempotent."""
        if self._closed or self._process != os.getpid():
            return
        self._closed = True
        self._wait(self._end())
        self._stop()
        self._thread.join()
        self._loop.close()

    # The following methods run in the threads of callers.

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise InvalidInputError(f"{method}: this VllmServer is closed; make another")
        if self._process != os.getpid():
            raise InvalidInputError(
                f"{method}: this VllmServer works in process {self._process}, and this is its forked child "
                f"{os.getpid()}, where its thread does not exist; make another engine here"
            )

    def _base_of(self, weights: PolicyWeights, version: int) -> tuple[tuple[object, ...], Path]:
        """Return stamp and folder of a policy's base weights, after writing them if they have changed."""
        stamp = weights.stamp()
        if self._base is not None and self._base[0] == stamp:
            return self._base
        path = cast("Path", self._folder) / f"base-{version}-{uuid.uuid4().hex[:8]}"
        check_weights(weights, None, "base")
        named_weights = weights_to_load(weights, None, "base")
        self._write(path, lambda part: write_checkpoint(part, weights.model, named_weights, self.chat.tokenizer))
        return stamp, path

    def _model_of(self, weights: PolicyWeights) -> Any:
        """Return the model whose config and generation config are written to a checkpoint."""
        if weights.model is not None:
            return weights.model
        before = cast("Path", self._folder) / f"version-{self.policy_version}"
        folders = [str(before), str(getattr(self.chat.tokenizer, "name_or_path", ""))]
        failure: UnsupportedError | None = None
        for folder in filter(None, folders):
            try:
                return model_of_config(folder)
            except UnsupportedError as error:
                failure = error
        raise InvalidInputError(
            "update_weights: the config of the state dict's model cannot be loaded from "
            f"{' or '.join(map(repr, filter(None, folders)))}; give the model instead of its state dict, or load the "
            "engine's tokenizer from the folder of the model's checkpoint"
        ) from failure

    @staticmethod
    def _write(path: Path, write: Callable[[Path], None]) -> None:
        """Write a folder atomically: it gets its name when it is complete."""
        part = new_folder(path)
        write(part)
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)

    def _wait(self, coroutine: Coroutine[Any, Any, _Answer]) -> _Answer:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # The following methods run in the event loop.

    async def _open(self) -> None:
        """Open all servers, and retry unreachable ones later; raise an error if all fail or one is set up wrongly."""
        opening = {asyncio.ensure_future(server.open()): server for server in self._servers}
        waiting, seconds = set(opening), None
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                if any(each.exception() is None for each in done):
                    seconds = _OPENING_SECONDS
        finally:
            # A connection in use would not be closed, so wait until cancelled calls have ended.
            for each in waiting:
                each.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
        failures = {
            server: EngineError(f"VllmServer: {server.url} does not answer in time; check that it is running")
            if each.cancelled()
            else each.exception()
            for each, server in opening.items()
        }
        errors = [failure for failure in failures.values() if failure is not None]
        for failure in errors:
            if len(errors) == len(failures) or not isinstance(failure, EngineError):
                raise failure
        versions = {server.url: server.version for server, failure in failures.items() if failure is None}
        if len(set(versions.values())) > 1 and self._folder is not None:
            raise InvalidInputError(
                f"VllmServer: the servers have weights of different versions, {versions}; start all servers again, or "
                f"make an engine of servers with one version"
            )
        self.policy_version = max(versions.values())
        for server, reason in failures.items():
            if reason is not None:
                self._lose(server, reason)

    def _lose(self, server: VllmApi, failure: BaseException) -> None:
        """Leave a server out until it responds and has the weights."""
        if server not in self._returning and not server.gave_up:
            _log.warning("%s; it is left out, and retried for %g seconds", failure, self._patience)
            task = self._loop.create_task(self._bring_back(server))
            self._returning[server] = task
            task.add_done_callback(lambda _: self._returning.pop(server))

    async def _bring_back(self, server: VllmApi) -> None:
        """Retry a server until it responds, and reload the weights if it was restarted."""
        pause, deadline = 1.0, time.monotonic() + self._patience
        while True:
            try:
                await server.open()
                async with self._loading:
                    path = None if self._folder is None else self._folder / f"version-{self.policy_version}"
                    if server.version != self.policy_version and path is not None and path.exists():
                        base = None if self._base is None else str(self._base[1])
                        await server.load(str(path), self.policy_version, base)
            except EngineError as failure:
                if time.monotonic() + pause > deadline:
                    server.gave_up = True
                    _log.error("%s; it is given up until update_weights reaches it", failure)
                    return
            except AgentRLError as failure:  # it was started with other options
                server.version = -1
                _log.error("%s; it is left out", failure)
                return
            else:
                server.rests_until = 0.0
                _log.warning("VllmServer: %s answers again, with version %d", server.url, server.version)
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _run_entry(self, entry: _ServerRequest) -> Segment:
        try:
            return await self._answer(entry)
        finally:
            entry.ended.set()

    async def _answer(self, entry: _ServerRequest) -> Segment:
        """Return the response of the first server that has the weights and does not fail."""
        failure: EngineError | None = None
        tried: set[VllmApi] = set()
        rounds = 0
        while True:
            await self._can_generate.wait()
            if entry.leaves:
                break
            server = self._choose(entry.request.group, tried)
            if server is None:
                if rounds == _ROUNDS or not self._returning:
                    break
                returned, _ = await asyncio.wait(
                    list(self._returning.values()), timeout=_LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if returned:
                    rounds += 1
                    tried.clear()
                continue
            entry.server = server
            server.busy += 1
            before = self.policy_version
            try:
                segment = await server.generate(entry.name, entry.request, entropies=self.entropy_estimator != "none")
            except EngineError as error:
                failure = error
                server.rest()
                self._lose(server, error)
            else:
                server.gave_up = False
                if self._folder is None and segment.policy_version >= before:
                    self.policy_version = max(self.policy_version, segment.policy_version)
                    return segment
                if segment.policy_version == self.policy_version:
                    return segment
                if segment.policy_version < self.policy_version and self._folder is not None:
                    self._lose(server, EngineError(f"VllmServer: {server.url} was started again"))
            finally:
                server.busy -= 1
                entry.server = None
            tried.add(server)
        if entry.leaves:
            return aborted(entry.request, self.policy_version)
        versions = {server.url: server.version for server in self._servers}
        raise failure or EngineError(
            f"VllmServer: no server has weights of version {self.policy_version} (they have {versions}); "
            f"call update_weights(model, version={self.policy_version})"
        )

    def _choose(self, group: str, tried: set[VllmApi]) -> VllmApi | None:
        """Return the group's server, or the least busy one with the weights; servers that failed lately come last."""
        usable = [server for server in self._servers if server not in tried and server not in self._returning]
        if self._folder is not None:
            usable = [server for server in usable if server.version == self.policy_version]
        now = time.monotonic()
        return self._homes.choose(
            group,
            usable,
            load=lambda server: (server.rests_until if server.rests_until > now else 0.0, server.busy),
            rests=lambda server: server.rests_until > now,
        )

    def _leave(self, request: Request) -> None:
        with self._lock:
            same = list(self._open_requests.get(request, ()))
        for entry in same:
            if not entry.leaves:
                entry.leaves = True
                if entry.server is not None:
                    task = self._loop.create_task(self._abort(entry, entry.server))
                    self._aborting.add(task)
                    task.add_done_callback(self._aborting.discard)

    @staticmethod
    async def _abort(entry: _ServerRequest, server: VllmApi) -> None:
        try:
            await server.abort(entry.name, entry.ended)
        except AgentRLError:  # a server that does not respond will also fail the request
            await entry.ended.wait()

    async def _quiet(self) -> None:
        """Abort all running requests, and wait until they have ended."""
        with self._lock:
            waiting = [entry for same in self._open_requests.values() for entry in same if entry.server is not None]
        for entry in waiting:
            self._leave(entry.request)
        await asyncio.gather(*(entry.ended.wait() for entry in waiting))

    async def _largest_rank(self) -> int:
        """Return the largest adapter rank that all reachable servers support; 0 if one supports no adapters."""
        ranks = await asyncio.gather(*(server.largest_rank() for server in self._servers), return_exceptions=True)
        for rank in ranks:
            if isinstance(rank, BaseException) and not isinstance(rank, EngineError):
                raise rank
        # The update leaves out servers that do not respond, and reports them.
        return min((rank for rank in ranks if isinstance(rank, int)), default=0)

    async def _replace(self, folder: str, version: int, base: str | None = None) -> list[Exception]:
        """Load new weights, or with a base a new adapter, into all servers; return the errors of failed ones."""
        self._can_generate.clear()
        await self._loading.acquire()
        try:
            await self._quiet()
            results = await asyncio.gather(
                *(server.load(folder, version, base) for server in self._servers), return_exceptions=True
            )
            failures = [result for result in results if isinstance(result, BaseException)]
            for failure in failures:
                if len(failures) == len(results) or not isinstance(failure, EngineError):
                    raise failure
            for server, result in zip(self._servers, results, strict=True):
                server.rests_until = 0.0
                server.gave_up = False
                if result is not None:
                    server.version = -1  # its weights are unknown
                    self._lose(server, result)
            self.policy_version = version
        finally:
            self._loading.release()
            self._can_generate.set()
        return [failure for failure in failures if isinstance(failure, Exception)]

    async def _end(self) -> None:
        await self._quiet()
        # Their requests have ended. A connection in use would stay open after the loop has ended.
        aborting = [*self._aborting, *self._returning.values()]
        for task in aborting:
            task.cancel()
        await asyncio.gather(*aborting, return_exceptions=True)
        for server in self._servers:
            await server.close()


def _images_of(processor: Any, tokenizer: Any) -> VllmImages:
    """Return the converter of requests with images, with the placeholders of the model's config."""
    from agentrl_core.engine.vllm_images import VllmImages

    path = str(getattr(tokenizer, "name_or_path", ""))
    try:
        model = model_of_config(path)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"VllmServer: the config of the processor's model is needed, but cannot be loaded from {path!r}; load the "
            "processor from the model's folder: AutoProcessor.from_pretrained(folder)"
        ) from error
    return VllmImages(processor, model)
