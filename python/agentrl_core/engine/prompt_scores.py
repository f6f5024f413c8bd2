"""Score given tokens with an engine, instead of sampling."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request, Segment


@dataclass(frozen=True, eq=False)
class PromptRequest(Request):
    """A request to score its own tokens at temperature 1, with the `Sampling.top` most likely tokens at each place.

    Only `engine.Vllm` supports it. It also generates `Sampling.max_tokens` tokens; set 1.
    """


@dataclass(frozen=True, eq=False)
class ScoredPrompt(Segment):
    """The segment of a `PromptRequest` of n tokens, with the scores of its tokens from the second on.

    Args:
        scores: float64 [n - 1, 1 + 2 top], of the tokens from the second on: log-prob, ids and log-probs of the
            likeliest tokens. None: the request was aborted.
    """

    scores: NDArray[np.float64] | None = None


def table_of_prompt(flat: Any, count: int, top: int) -> NDArray[np.float64]:
    """Return `ScoredPrompt.scores` from vLLM's `FlatLogprobs`: each token itself, then the most likely ones.

    Args:
        flat: nothing for the first token, `1 + top` entries for each other one.
        count: number of tokens.
        top: number of likeliest tokens.
    """
    shape = (count - 1, 1 + top)
    ids = np.array(flat.token_ids, dtype=np.float64).reshape(shape)
    logprobs = np.array(flat.logprobs, dtype=np.float64).reshape(shape)
    return np.concatenate([logprobs[:, :1], ids[:, 1:], logprobs[:, 1:]], axis=1)
