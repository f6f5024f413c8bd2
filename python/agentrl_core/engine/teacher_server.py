"""A teacher on a vLLM server: log-probs of given tokens, and its likeliest tokens, by `prompt_logprobs`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, takewhile
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core._util.files import new_file
from agentrl_core.engine.teacher_requests import Scores, Tokens, teacher_answers
from agentrl_core.exceptions import EngineError, InvalidInputError

if TYPE_CHECKING:
    from os import PathLike

    import httpx
    from torch import Tensor

    from agentrl_core.model.pack import Pack

_ATTEMPTS = 4
_LEAST = -9999.0
"""The number that stands for a log-prob of minus infinity in vLLM's JSON."""
_PROBED = 256


class TeacherServer:
    """A teacher on a vLLM server; give it to `arl.annotate` in place of a model.

    Each sequence of a pack is one request to `/v1/completions` with `prompt_logprobs`, which the server batches. The
    server scores at temperature 1, so tokens that were sampled at another temperature are refused. Start the server
    with `--max-logprobs` of at least `top_k`.

    Args:
        url: URL of the server, such as `http://127.0.0.1:8000`.
        top_k: number of most likely tokens, as in `annotate`; None: only log-probs of the given tokens.
        tokenizer: tokenizer of the policy. The first request checks that the server's tokenizer equals it. None: not
            compared.
        concurrency: number of concurrent requests.
        seconds: time limit for a response.
        folder: folder in which scores are saved, a file for each sequence, by the name of the served model. A resumed
            run reads them and requests the rest. Use another folder after the weights of that model have changed,
            which is not checked. None: scores are not saved.

    Raises:
        InvalidInputError: an option is out of range.

    Example:
        >>> from agentrl_core.engine.teacher_server import TeacherServer
        >>> TeacherServer("http://127.0.0.1:8000", top_k=20).top_k
        20
    """

    def __init__(
        self,
        url: str,
        *,
        top_k: int | None = None,
        tokenizer: Any = None,
        concurrency: int = 16,
        seconds: float = 600.0,
        folder: str | PathLike[str] | None = None,
    ) -> None:
        numbers: dict[str, object] = {"top_k": 1 if top_k is None else top_k, "concurrency": concurrency}
        for name, value in numbers.items():
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidInputError(f"{name} is {value!r}; give a whole number of at least 1")
        self.url, self.top_k = url.rstrip("/"), top_k
        self._tokenizer, self._concurrency, self._seconds = tokenizer, concurrency, seconds
        self._folder = None if folder is None else Path(folder)
        self._model = ""

    def __call__(self, pack: Pack) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return log-probs of a pack's targets `[N]`; with `top_k` also ids and log-probs of the likeliest `[N, k]`.

        Raises:
            UnsupportedError: the pack shows images.
            EngineError: the server does not respond, or its response is not that of vLLM.
            InvalidInputError: a token was sampled at another temperature than 1, or the tokenizers differ.
        """
        return teacher_answers(pack, self.top_k, self._score)

    def _score(self, prompts: list[Tokens], places: list[Tokens]) -> Scores:
        """Request the scores of sequences, several at once."""
        import httpx

        with httpx.Client(base_url=self.url, timeout=self._seconds) as client:
            if not self._model:
                self._open(client)
            with ThreadPoolExecutor(self._concurrency) as threads:
                return list(threads.map(lambda pair: self._answer(client, *pair), zip(prompts, places, strict=True)))

    def _open(self, client: httpx.Client) -> None:
        """Read the model's name from the server, and compare the server's tokenizer with the given one, if any."""
        model = str(self._requested(client, "GET", "/v1/models", None)["data"][0]["id"])
        if self._tokenizer is not None:
            text = self._tokenizer.decode(np.linspace(0, len(self._tokenizer) - 1, _PROBED, dtype=np.int64).tolist())
            own = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            body = {"model": model, "prompt": text, "add_special_tokens": False}
            theirs = self._requested(client, "POST", "/tokenize", body)["tokens"]
            if list(own) != list(theirs):
                place = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(own, theirs, strict=False)))
                raise InvalidInputError(
                    f"tokenizer: the server at {self.url} tokenises a text differently than the policy's tokenizer: "
                    f"token {place} is {theirs[place : place + 1]}, not {own[place : place + 1]}; serve a model with "
                    "the policy's tokenizer, as log-probs of other tokens have no meaning"
                )
        self._model = model

    def _answer(self, client: httpx.Client, tokens: Tokens, places: Tokens) -> NDArray[np.float64]:
        """Return for each place of a sequence its log-prob, and ids and log-probs of the most likely tokens."""
        cache_file = None
        if self._folder is not None:
            question = f"{self._model} {self.top_k} ".encode() + tokens.tobytes() + b" " + places.tobytes()
            cache_file = self._folder / f"{hashlib.sha256(question).hexdigest()}.npy"
            if cache_file.is_file():
                cached: NDArray[np.float64] = np.load(cache_file)
                return cached
        body = {
            "model": self._model,
            "prompt": tokens.tolist(),
            "max_tokens": 1,
            "temperature": 1.0,
            "prompt_logprobs": self.top_k or 0,
        }
        answer = self._requested(client, "POST", "/v1/completions", body)
        try:
            entries = itemgetter(*places.tolist(), 0)(answer["choices"][0]["prompt_logprobs"])[:-1]
            table = _table(entries, tokens[places], self.top_k or 0)
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"the server at {self.url} returned no valid prompt_logprobs ({error!r}); use a vLLM server"
            ) from error
        if cache_file is not None:
            cache_file.parent.mkdir(parents=True, exist_ok=True)
            with new_file(cache_file) as file:
                np.save(file, table)
        return table

    def _requested(self, client: httpx.Client, method: str, path: str, body: dict[str, Any] | None) -> Any:
        """Return the server's response, retrying after connection and server errors."""
        import httpx

        reason = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(2.0 ** (attempt - 1))
            try:
                response = client.request(method, path, json=body)
            except httpx.TransportError as error:
                reason = repr(error)
                continue
            if response.status_code < 400:
                return response.json()
            reason = f"status {response.status_code}: {response.text[:300]}"
            if response.status_code < 500:
                break
        raise EngineError(
            f"the request {method} {path} to the server at {self.url} failed ({reason}); check that the server runs, "
            "and its log"
        )


def _table(entries: Sequence[dict[str, dict[str, float]]], tokens: Tokens, count: int) -> NDArray[np.float64]:
    """Return rows of log-prob, ids and log-probs from vLLM's `logprob` and `rank` by token id."""
    lengths = np.fromiter(map(len, entries), np.int64, len(entries))
    row = np.repeat(np.arange(len(entries)), lengths)
    each = list(chain.from_iterable(map(dict.values, entries)))
    ids = np.fromiter(map(int, chain.from_iterable(entries)), np.int64, len(row))
    logprobs = np.fromiter(map(itemgetter("logprob"), each), np.float64, len(row))
    logprobs = np.where(logprobs <= _LEAST, -np.inf, logprobs)
    ranks = np.fromiter(map(itemgetter("rank"), each), np.int64, len(row))
    table: NDArray[np.float64] = np.concatenate(
        [
            np.full((len(entries), 1), np.nan),
            np.full((len(entries), count), -1.0),
            np.full((len(entries), count), -np.inf),
        ],
        axis=1,
    )
    is_own_token = ids == tokens[row]
    table[row[is_own_token], 0] = logprobs[is_own_token]
    if np.isnan(table[:, 0]).any():
        raise ValueError("a token of the prompt has no log-prob")
    high = ranks <= count
    table[row[high], ranks[high]] = ids[high]
    table[row[high], count + ranks[high]] = logprobs[high]
    return table
