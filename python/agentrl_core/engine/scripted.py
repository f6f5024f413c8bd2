"""An engine that says what it is told to, for tests of everything around an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request, Sampling, Segment, check_requests
from agentrl_core.engine.chat import Chat
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Reply:
    """What to say: a text (its stop token is added) or token ids, with a log-probability and an entropy for each token.

    Without `logprobs` or `entropies` they are 0: a script is certain of what it says.
    """

    content: str | Sequence[int]
    logprobs: Sequence[float] | None = None
    entropies: Sequence[float] | None = None


class Scripted:
    """Gives replies from a list, or from a function of the request's tokens.

    A list is used up in the order of the requests. A reply is cut behind the first stop token of the sampling, and at
    `max_tokens`, as a real engine would.

    Args:
        tokenizer: with a chat template; its length is the vocabulary's.
        replies: texts, `Reply`s, or a function from the request's tokens (int32 [n]) to one of them.

    Raises:
        InvalidInputError: the tokenizer has no chat template; replies is one text.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> _, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> says = engine.Scripted(tokenizer, ["<answer>4</answer>"])
        >>> [segment] = says.generate([engine.Request(says.chat.prompt("2 + 2 ="), seed=0)], engine.Sampling())
        >>> says.chat.decode(segment.tokens)
        '<answer>4</answer>'
    """

    entropy_estimator = "exact"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        replies: Sequence[str | Reply] | Callable[[NDArray[np.int32]], str | Reply],
    ) -> None:
        if isinstance(replies, str):
            raise InvalidInputError(f"Scripted: replies is the text {replies!r}; give a list of texts or a function")
        self.chat = Chat(tokenizer)
        self.policy_version = 0
        self.vocabulary_size = len(self.chat.tokenizer)
        self._function = replies if callable(replies) else None
        self._left = [] if callable(replies) else list(replies)[::-1]

    def generate(self, requests: Sequence[Request], sampling: Sampling) -> list[Segment]:
        """One segment for each request, in their order; see the class.

        Raises:
            InvalidInputError: the list is used up; a reply is empty; logprobs or entropies of another length than the
                reply's tokens; a requested token outside the vocabulary.
        """
        check_requests(requests, self.vocabulary_size)
        return [self._segment(request, sampling) for request in requests]

    def update_weights(self, model: nn.Module, version: int) -> None:  # noqa: ARG002 -- the protocol's argument
        """Stamp segments with `version` from now on; a script has no weights."""
        self.policy_version = version

    def _segment(self, request: Request, sampling: Sampling) -> Segment:
        said = self._function(request.tokens) if self._function else self._next()
        reply = Reply(said) if isinstance(said, str) else said
        tokens = (
            self.chat.action(reply.content) if isinstance(reply.content, str) else np.array(reply.content, np.int32)
        )
        stops = np.flatnonzero(np.isin(tokens, sampling.stop_token_ids))
        length = min(int(stops[0]) + 1 if len(stops) else len(tokens), request.max_tokens or sampling.max_tokens)
        if length == 0:
            raise InvalidInputError(f"Scripted: the reply {reply} has no tokens; give at least one")
        last = int(tokens[length - 1])
        return Segment(
            tokens=tokens[:length],
            logprobs=_numbers("logprobs", reply.logprobs, len(tokens))[:length],
            entropies=_numbers("entropies", reply.entropies, len(tokens))[:length],
            finish_reason="stop" if last in sampling.stop_token_ids else "length",
            policy_version=self.policy_version,
            seed=request.seed,
        )

    def _next(self) -> str | Reply:
        if not self._left:
            raise InvalidInputError(
                "Scripted: the list of replies is used up; give as many replies as there are requests"
            )
        return self._left.pop()


def _numbers(name: str, values: Sequence[float] | None, count: int) -> NDArray[np.float32]:
    if values is None:
        return np.zeros(count, dtype=np.float32)
    if len(values) != count:
        raise InvalidInputError(
            f"Scripted: a reply of {count} tokens has {len(values)} {name}; give one for each token"
        )
    return np.array(values, dtype=np.float32)
