"""What every engine takes and gives: token ids, never text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from torch import nn

    from agentrl_core.engine.chat import Chat


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn from the model's logits `z` over a vocabulary of V tokens.

        x = z / temperature;  top_k: keep the k largest;  top_p: keep the smallest set of most likely tokens whose
        probabilities sum to at least top_p;  p = softmax(x over what was kept)

    Tokens that tie with the smallest kept one by `top_k` are kept too. Log-probabilities and entropies that an engine
    reports are those of `p`, the distribution really sampled from.

    Args:
        temperature: above 0; or 0 for the most likely token, reported with log-probability 0 and entropy 0.
        top_p: in (0, 1]; 1 keeps all.
        top_k: 0 keeps all.
        max_tokens: most tokens of a segment, the stop token included.
        stop_token_ids: a segment ends with the first of these, which belongs to it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 64
    stop_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise InvalidInputError(f"Sampling: temperature is {self.temperature}; give 0 or a positive number")
        if not 0.0 < self.top_p <= 1.0:
            raise InvalidInputError(f"Sampling: top_p is {self.top_p}; give a number above 0 and at most 1")
        if self.top_k < 0:
            raise InvalidInputError(f"Sampling: top_k is {self.top_k}; give 0 (all tokens) or a positive integer")
        if self.max_tokens < 1:
            raise InvalidInputError(f"Sampling: max_tokens is {self.max_tokens}; give at least 1")


@dataclass(frozen=True, eq=False)
class Request:
    """One segment to generate: continue `tokens` (int32 [n], n >= 1).

    `seed` (0 to 2^63 - 1) decides every draw of the segment and nothing else does: hash it per segment
    (`structural_seed`), since two requests with one seed draw the same numbers. `max_tokens` overrides the sampling's.
    """

    tokens: NDArray[np.int32]
    seed: int
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.tokens.size == 0 or self.tokens.dtype.kind not in "iu":
            raise InvalidInputError(
                f"Request: tokens is an array of shape {self.tokens.shape} and type {self.tokens.dtype}; "
                f"give at least one token as a one-dimensional integer array"
            )
        if not 0 <= self.seed < 1 << 63:
            raise InvalidInputError(f"Request: seed is {self.seed}; give an integer from 0 to 2^63 - 1")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise InvalidInputError(f"Request: max_tokens is {self.max_tokens}; give at least 1 or None")


@dataclass(frozen=True, eq=False)
class Segment:
    """What was generated for one request: n >= 1 tokens, the stop token included.

    `tokens` int32 [n]; `logprobs` float32 [n]: log p of each token as sampled (see `Sampling`); `entropies` float32
    [n]: -sum p log p in nats at each token, or None where the engine cannot say; `finish_reason`: "stop" or "length".
    """

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32] | None
    finish_reason: Literal["stop", "length"]
    policy_version: int
    seed: int


class Engine(Protocol):
    """Something that generates."""

    @property
    def chat(self) -> Chat:
        """How text becomes tokens for this model, and back."""
        ...

    @property
    def policy_version(self) -> int:
        """The version of the weights that the next segments are sampled from."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """V, the width of the model's logits."""
        ...

    @property
    def entropy_estimator(self) -> str:
        """How `Segment.entropies` is made: "exact", "top_10" or "none"."""
        ...

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Segment]:
        """One segment for each request, in their order."""
        ...

    def update_weights(self, model: nn.Module, version: int) -> None:
        """Sample from `model`'s weights from now on and stamp segments with `version`."""
        ...


def check_requests(requests: Sequence[Request], vocabulary_size: int) -> None:
    """Refuse token ids outside the vocabulary, which a model would answer with a crash or with nonsense.

    Raises:
        InvalidInputError: names the request, the token and the vocabulary.
    """
    for index, request in enumerate(requests):
        smallest, largest = int(request.tokens.min()), int(request.tokens.max())
        if smallest < 0 or largest >= vocabulary_size:
            wrong = smallest if smallest < 0 else largest
            raise InvalidInputError(
                f"generate: request {index} holds token {wrong}, outside the vocabulary of {vocabulary_size} tokens; "
                f"make its tokens with this engine's chat"
            )
