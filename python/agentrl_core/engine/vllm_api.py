"""HTTP client of one running vLLM server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import time
import uuid
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core._core import columns
from agentrl_core.engine import vllm_output
from agentrl_core.engine.base import Request, Segment, aborted
from agentrl_core.engine.http_pool import HttpPool
from agentrl_core.exceptions import EngineError, InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    import httpx

    from agentrl_core.engine.vllm_images import VllmImages

_GENERATE = "/inference/v1/generate"
_ABORT = "/inference/v1/abort_requests"
# Prefix that the server adds to the names of our requests.
_PREFIX = "generate-tokens-"
# An abort that arrives before its request has no effect, so it is repeated, first after this many seconds.
_FIRST_REMINDER = 0.02
_LAST_REMINDER = 1.0
# A failed server is used again after this many seconds, or at once if no other is left.
_REST = 10.0
# The number that stands for a log-probability of minus infinity in vLLM's JSON.
_FLOOR = -9999.0
# The version of a server that has not received weights yet.
_UNTOUCHED = "default"
_INCOMPLETE = "incomplete"
_WORKER = "agentrl_core.engine.vllm_worker.VllmWorker"


_PROBE = 4


class VllmApi:
    """Client of one server, with the number of its running requests and the last reported version of its weights.

    Args:
        url: URL of the server.
        seconds: time limit for a response, see `VllmServer`.
        images: converts requests with images; None: images are not supported.
    """

    def __init__(self, url: str, seconds: float, images: VllmImages | None = None) -> None:
        self.url = url
        self.version = -1
        self.context_tokens = 0
        self.gave_up = False
        """Whether the server did not respond within the patience, so that requests no longer wait for it."""
        self.busy = 0
        self.rests_until = 0.0
        self._connections, self._images = HttpPool(url, seconds), images
        self._loads = False
        self._largest_rank = 0
        self._base: str | None = None
        """The folder of the server's base weights, if it has an adapter."""
        self._adapter: str | None = None
        """Name of the adapter on the server."""

    async def open(self) -> None:
        """Read the server's limits and version, and check its log-probabilities by generating one token.

        Raises:
            EngineError: the server does not respond.
            UnsupportedError: the server has no route for tokens.
            InvalidInputError: log-probabilities are not processed; the version is not a number.
        """
        # With top_k=1, processed log-probs are log 1 = 0 for the kept token and log 0 for others. The prompt has
        # several tokens: the embedding of the padding token is often zero, so that after it alone all tokens are
        # equally likely and top_k=1 keeps several.
        params = {"max_tokens": 1, "top_k": 1, "logprobs": 2, "temperature": 1.0, "ignore_eos": True, "seed": 0}
        placeholders = () if self._images is None else self._images.placeholders
        probe = [token for token in range(_PROBE + len(placeholders)) if token not in placeholders][:_PROBE]
        body = {"token_ids": probe, "sampling_params": params | {"detokenize": False}}
        try:
            models = await self._answer("GET", "/v1/models", None)
            answer = await self._post(_GENERATE, body)
        except _MissingRoute as closed:
            raise UnsupportedError(
                f"VllmServer: {self.url} does not accept token ids ({closed}); start it with --enable-scale-out"
            ) from None
        self.context_tokens = int(models["data"][0]["max_model_len"])
        [choice] = answer["choices"]
        [place] = choice["logprobs"]["content"]
        if abs(place["logprob"]) > 1e-6 or any(other["logprob"] > _FLOOR for other in place["top_logprobs"][1:]):
            found = f"the only token kept by top_k=1 has {place['logprob']:.4f}, not 0"
            if abs(place["logprob"]) <= 1e-6:
                found = "tokens that top_k=1 drops have log-probabilities above -inf"
            raise InvalidInputError(
                f"VllmServer: {self.url} does not report log-probabilities of the distribution sampled from ({found}); "
                "start the server with "
                f"--logprobs-mode {vllm_output.PROCESSED}"
            )
        versions = _versions(choice)
        self._adapter = (versions or [""])[0].partition("+")[2] or None
        self.version = self._version(versions)
        self.gave_up = False

    async def generate(self, name: str, request: Request, *, entropies: bool) -> Segment:
        """Generate the segment of a request; `abort` refers to it by `name`.

        Raises:
            InvalidInputError: the server refuses the request.
            EngineError: the server failed, or does not respond.
        """
        likeliest = vllm_output.columns(request, entropies=entropies)
        # One more, since the sampled token is always among them; none if no others are needed.
        logprob_count = likeliest + 1 if likeliest else 0
        params = vllm_output.params(request, logprob_count)
        body = {"request_id": name, "token_ids": request.tokens.tolist(), "sampling_params": params}
        if self._images is not None:
            params["logit_bias"] = dict.fromkeys(self._images.placeholders, vllm_output.LEAST_BIAS)
            body |= self._images.body(request)
        if self._adapter is not None:
            body["model"] = self._adapter
        try:
            response = await self._response("POST", _GENERATE, body)
        except _MissingRoute as missing:
            self.version, self._base = -1, None
            raise EngineError(
                f"VllmServer: {self.url} was started again, without the policy's weights ({missing}); call "
                "update_weights(model, version=...)"
            ) from None
        try:
            # The sampled token, and as many of the most likely others as fill the row: most of the response.
            ids, logprobs, rest = columns.vllm_candidates(response.content)
        except ValueError as error:
            raise EngineError(f"VllmServer: {self.url}: {error}; use vLLM 0.32 or newer") from error
        answer = json.loads(rest)
        [choice] = answer["choices"]
        if choice["finish_reason"] not in ("stop", "length", "abort"):
            raise EngineError(f"VllmServer: {self.url} ended a request with {choice['finish_reason']!r}; check its log")
        if not choice["token_ids"]:
            return aborted(request, self.version)
        if len(ids) != len(choice["token_ids"]):
            raise EngineError(
                f"VllmServer: {self.url} returned {len(choice['token_ids'])} tokens, but {len(ids)} log-probs; use "
                "vLLM 0.32 or newer"
            )
        self.version = self._version(_versions(choice))
        if request.images and answer["prompt_token_ids"] != request.tokens.tolist():
            raise InvalidInputError(
                f"generate: {self.url} expands text and images to "
                f"{vllm_output.difference(answer['prompt_token_ids'], request)}; render text and images together with "
                "this engine's chat, and give VllmServer the processor of the servers' checkpoint"
            )
        details = answer["usage"]["prompt_tokens_details"] or {}
        logprobs[logprobs <= _FLOOR] = -np.inf
        order = np.argsort(-logprobs, axis=1, kind="stable")[:, :likeliest]
        return vllm_output.segment(
            request,
            (ids[:, 0].copy(), logprobs[:, 0]),
            (np.take_along_axis(ids, order, 1), np.take_along_axis(logprobs, order, 1)),
            aborted=choice["finish_reason"] == "abort",
            version=self.version,
            cached_tokens=details.get("cached_tokens"),
            entropies=entropies,
            routed_experts=self._array(choice.get("routed_experts")),
        )

    async def abort(self, name: str, ended: asyncio.Event) -> None:
        """End a request; its `generate` returns the tokens so far."""
        pause = _FIRST_REMINDER
        while not ended.is_set():
            await self._post(_ABORT, {"request_ids": [_PREFIX + name]})
            try:
                await asyncio.wait_for(ended.wait(), pause)
            except TimeoutError:
                pause = min(2 * pause, _LAST_REMINDER)

    async def largest_rank(self) -> int:
        """Return the largest rank of adapters that the server supports; 0: it supports none.

        Raises:
            UnsupportedError: the server lacks a route, or its worker cannot load weights.
            EngineError: the server does not respond.
        """
        await self._check_worker()
        return self._largest_rank

    async def load(self, folder: str, version: int, base: str | None = None) -> None:
        """Load the weights of a folder into the server as `version`; running requests end, and caches are cleared.

        Args:
            folder: folder of a checkpoint, or with `base` of an adapter.
            version: version of the weights.
            base: folder of the adapter's base weights, loaded if the server does not have them.

        Raises:
            UnsupportedError: the server lacks a route, or its worker cannot load weights.
            InvalidInputError: the server cannot read the folder, or refuses the adapter.
            EngineError: the server does not respond, or failed.
        """
        await self._check_worker()
        await self._post("/pause?mode=abort&clear_cache=true", {})
        try:
            if base is None:
                await self._load_policy(folder)
                self._base = None
            else:
                information = await self._answer("GET", "/weight_info", None)
                if self._base != base or information.get("weight_version") != self._mark(self.version):
                    await self._load_policy(base)
                    self._base = base
                await self._load_adapter(folder, version)
            await self._post("/update_weight_version", {"new_version": self._mark(version)})
        finally:
            await self._post("/resume", {})
        self.version = version

    async def _load_policy(self, folder: str) -> None:
        self._base = None  # until it is loaded
        before, mark = self.version, self._mark(self.version)
        await self._start_change()
        answer = await self._post("/collective_rpc", {"method": "load_policy", "args": [folder]})
        reasons = {reason for reason in answer["results"] if reason}
        if reasons:
            if all(answer["results"]) and before >= 0:  # no worker changed anything
                await self._post("/update_weight_version", {"new_version": mark})
                self.version = before
            remedy = "give the model of the served checkpoint"
            if any(reason.startswith("sees") for reason in reasons):
                remedy = "give a folder= that trainer and servers share"
            raise InvalidInputError(f"update_weights: {self.url} {' and '.join(sorted(reasons))}; {remedy}")
        self._adapter = None  # vLLM has dropped it

    async def _load_adapter(self, folder: str, version: int) -> None:
        """Load an adapter under a new name, and remove the previous one."""
        name, before = f"policy-{version}-{uuid.uuid4().hex[:8]}", self._adapter
        try:
            await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        except _MissingRoute as closed:
            raise UnsupportedError(
                f"update_weights: {self.url} takes no adapters while it runs ({closed}); start it with "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, or without --enable-lora"
            ) from None
        await self._start_change()
        self._adapter = name
        if before is not None:
            await self._post("/v1/unload_lora_adapter", {"lora_name": before})

    async def _start_change(self) -> None:
        """Set the version to `incomplete`, so that no client uses the weights until all new ones are loaded."""
        self.version = -1
        await self._post("/update_weight_version", {"new_version": _INCOMPLETE})

    def _mark(self, version: int) -> str:
        """Return the version as stored on the server, with the adapter's name, from which other clients sample."""
        return str(version) if self._adapter is None else f"{version}+{self._adapter}"

    async def close(self) -> None:
        """Close the connections to the server, which keeps running."""
        await self._connections.close()

    def rest(self) -> None:
        """Mark the server as failed, so that other servers are preferred for some seconds."""
        self.rests_until = time.monotonic() + _REST

    async def _check_worker(self) -> None:
        """Check that the worker can load weights; calling a missing method would end the server."""
        if self._loads:
            return
        try:
            information = await self._answer("GET", "/server_info?config_format=json", None)
        except _MissingRoute as closed:
            raise UnsupportedError(
                f"update_weights: {self.url} takes no weights ({closed}); start it with VLLM_SERVER_DEV_MODE=1"
            ) from None
        worker = information["vllm_config"]["parallel_config"]["worker_extension_cls"]
        if worker != _WORKER:
            raise UnsupportedError(
                f"update_weights: the worker of {self.url} cannot load a policy (worker_extension_cls is {worker!r}); "
                f"start the server with --worker-extension-cls {_WORKER}"
            )
        lora = information["vllm_config"].get("lora_config")
        self._largest_rank = int(lora["max_lora_rank"]) if lora else 0
        self._loads = True

    def _array(self, text: str | None) -> NDArray[Any] | None:
        """Decode an array that the server sent as base64 of NumPy's format; None if it sent none."""
        if text is None:
            return None
        try:
            array: NDArray[Any] = np.load(io.BytesIO(base64.b64decode(text)), allow_pickle=False)
        except ValueError as error:
            raise EngineError(
                f"VllmServer: {self.url} returned routed_experts that are not a NumPy array ({error}); use vLLM 0.32 "
                "or later, or start it without --enable-return-routed-experts"
            ) from error
        return array

    def _version(self, reported: list[str]) -> int:
        versions = set(reported)
        words = ["0" if version == _UNTOUCHED else version for version in versions]
        number, _, adapter = words[0].partition("+") if len(words) == 1 else ("", "", "")
        if not number.isdecimal() or (adapter or None) != self._adapter:
            raise InvalidInputError(
                f"VllmServer: the weights of {self.url} have the versions {sorted(versions)}, because an update failed "
                "or another program updates them; call update_weights(model, version=...) in one program alone"
            )
        return int(number)

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        return await self._answer("POST", path, body)

    async def _answer(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        response = await self._response(method, path, body)
        is_json = response.headers.get("content-type", "").startswith("application/json")
        return response.json() if response.content and is_json else None

    async def _response(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        import httpx

        try:
            try:
                response = await self._connections.request(method, path, body)
            except (httpx.ReadError, httpx.RemoteProtocolError):
                # The server may close an idle connection just when it is used again. All requests here can be repeated
                # safely.
                response = await self._connections.request(method, path, body)
        except httpx.HTTPError as error:
            self._loads, self._base = False, None  # the server may be restarted with other options
            raise EngineError(
                f"VllmServer: {self.url} does not answer ({type(error).__name__}: {error}); "
                f"check that it is running, and its log"
            ) from error
        if response.status_code in (403, 404, 405):
            raise _MissingRoute(f"{path.partition('?')[0]}: {response.status_code}")
        if response.status_code >= 400:
            message = (
                f"VllmServer: {self.url} answers {response.status_code}: {_error_message(response)}; check its log"
            )
            raise EngineError(message) if response.status_code >= 500 else InvalidInputError(message)
        return response


class _MissingRoute(Exception):  # noqa: N818 -- callers convert it to an error with a remedy
    """Raised if the server does not have a route."""


def _versions(choice: dict[str, Any]) -> list[str]:
    """Return the versions of the weights that sampled the tokens of a response."""
    return [str(span["version"]) for span in choice["weight_versions"] or ()]


def _error_message(response: httpx.Response) -> str:
    """Return the error message in a server's response."""
    try:
        body = response.json()
    except ValueError:
        return response.text[:500]
    error = body.get("error", body) if isinstance(body, dict) else body
    return str(error.get("message", error) if isinstance(error, dict) else error)
