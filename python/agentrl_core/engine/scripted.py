"""An engine with scripted replies, for tests."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.engine.base import Request, Segment, aborted, check_request, check_version
from agentrl_core.engine.chat import Chat
from agentrl_core.exceptions import InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedTokenizerBase


@dataclass(eq=False)
class _Delayed:
    """A request whose reply is delayed."""

    request: Request
    loop: asyncio.AbstractEventLoop
    sleep: asyncio.Future[None]
    aborted: bool = False


@dataclass(frozen=True)
class ScriptedReply:
    """A scripted reply: a text (its stop token is added) or token ids, with a log-probability and an entropy per token.

    Without `logprobs` or `entropies` they are 0, since a script is deterministic.
    """

    content: str | Sequence[int]
    logprobs: Sequence[float] | None = None
    entropies: Sequence[float] | None = None


class Scripted:
    """Engine that returns replies from a list or a function, immediately or after a delay, without weights.

    Replies of a list are used in the order of requests. A reply is truncated after the first stop token of the
    sampling, and at `max_tokens`, as in a real engine. A request aborted during its delay returns no tokens. There are
    no logits, so other sampling parameters have no effect.

    Args:
        tokenizer: tokenizer with a chat template; its length is the vocabulary size.
        replies: texts or `ScriptedReply`s; or a function that returns one of them. A function with a parameter named
            `request` gets the `Request` under that name; any other gets the request's tokens, int32 [n].
        delay: seconds until a reply is returned, by `asyncio.sleep`; or a function from the `Request` to these seconds,
            with which a test can create any order of completion. 0: at once.
        chat_template_kwargs: options of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        InvalidInputError: the tokenizer has no chat template; `replies` is a single text.

    Example:
        >>> from agentrl_core import engine, env, warm_start
        >>> _, tokenizer = warm_start.build(env.ReasoningGym(["chain_sum"]), seed=0)
        >>> says = engine.Scripted(tokenizer, lambda request: f"<answer>{request.seed + 3}</answer>")
        >>> question = engine.Request(says.chat.prompt("2 + 2 ="), seed=1, sampling=engine.Sampling())
        >>> [segment] = engine.complete(says, [question])
        >>> says.chat.decode(segment.tokens)
        '<answer>4</answer>'
    """

    entropy_estimator = "exact"
    shares_parameters = False
    takes_images = True

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        replies: Sequence[str | ScriptedReply] | Callable[..., str | ScriptedReply],
        *,
        delay: float | Callable[[Request], float] = 0.0,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if isinstance(replies, str):
            raise InvalidInputError(
                f"Scripted: replies is the text {replies!r:.80}; give a list of texts or a function"
            )
        self.chat = Chat(tokenizer, chat_template_kwargs)
        self.policy_version = 0
        self.vocabulary_size = len(self.chat.tokenizer)
        self._function = _of_request(replies) if callable(replies) else None
        self._left = [] if callable(replies) else list(replies)[::-1]
        self._delay = delay if callable(delay) else lambda _: delay
        self._closed = False
        self._lock = threading.Lock()
        self._delayed: list[_Delayed] = []

    async def generate(self, request: Request) -> Segment:
        """Return the scripted reply to a request as a segment; see the class.

        Raises:
            InvalidInputError: the list is used up; a reply is empty; logprobs or entropies of another length than the
                reply's tokens; a requested token outside the vocabulary; the engine is closed.
        """
        self._check_open("generate")
        check_request(request, self.vocabulary_size, takes_images=self.takes_images)
        version = self.policy_version
        segment = self._segment(request)
        seconds = self._delay(request)
        if seconds > 0 and not await self._passes(request, seconds):
            return aborted(request, version)
        return segment

    def abort(self, request: Request) -> None:
        """End a request whose reply is delayed."""
        self._abort(lambda delayed: delayed.request is request)

    def update_weights(self, model: nn.Module | Mapping[str, Tensor], version: int) -> None:  # noqa: ARG002 -- the protocol's argument
        """Stamp segments with `version` from now on; delayed requests end as aborted."""
        self._check_open("update_weights")
        check_version(version)
        self._abort(lambda _: True)
        self.policy_version = version

    def close(self) -> None:
        """Refuse requests from now on; delayed ones end as aborted."""
        self._closed = True
        self._abort(lambda _: True)

    def _check_open(self, method: str) -> None:
        if self._closed:
            raise InvalidInputError(f"{method}: this Scripted engine is closed; make another")

    async def _passes(self, request: Request, seconds: float) -> bool:
        """Wait; return False if the request is aborted before the time passes."""
        delayed = _Delayed(request, asyncio.get_running_loop(), asyncio.ensure_future(asyncio.sleep(seconds)))
        with self._lock:
            self._delayed.append(delayed)
        try:
            await delayed.sleep
        except asyncio.CancelledError:
            if not delayed.aborted:  # the waiting caller was cancelled
                raise
        finally:
            with self._lock:
                self._delayed.remove(delayed)
        return not delayed.aborted

    def _abort(self, matches: Callable[[_Delayed], bool]) -> None:
        with self._lock:
            ending = [delayed for delayed in self._delayed if matches(delayed)]
            for delayed in ending:
                delayed.aborted = True
                delayed.loop.call_soon_threadsafe(delayed.sleep.cancel)

    def _segment(self, request: Request) -> Segment:
        sampling = request.sampling
        result = self._function(request) if self._function else self._next()
        reply = ScriptedReply(result) if isinstance(result, str) else result
        tokens = (
            self.chat.action(reply.content) if isinstance(reply.content, str) else np.array(reply.content, np.int32)
        )
        stops = np.flatnonzero(np.isin(tokens, sampling.stop_token_ids))
        length = min(int(stops[0]) + 1 if len(stops) else len(tokens), sampling.max_tokens)
        if length == 0:
            raise InvalidInputError(f"Scripted: the reply {reply!r:.80} has no tokens; give at least one token")
        last = int(tokens[length - 1])
        return Segment(
            tokens=tokens[:length],
            logprobs=_numbers("logprobs", reply.logprobs, len(tokens))[:length],
            entropies=_numbers("entropies", reply.entropies, len(tokens))[:length],
            finish_reason="stop" if last in sampling.stop_token_ids else "length",
            policy_version=self.policy_version,
            seed=request.seed,
        )

    def _next(self) -> str | ScriptedReply:
        if not self._left:
            raise InvalidInputError(
                "Scripted: the list of replies is used up; give one reply for each request, or a function"
            )
        return self._left.pop()


def _of_request(function: Callable[..., str | ScriptedReply]) -> Callable[[Request], str | ScriptedReply]:
    """Wrap a user's function as a function of the whole request."""
    if "request" in inspect.signature(function).parameters:
        return lambda request: function(request=request)
    return lambda request: function(request.tokens)


def _numbers(name: str, values: Sequence[float] | None, count: int) -> NDArray[np.float32]:
    if values is None:
        return np.zeros(count, dtype=np.float32)
    if len(values) != count:
        raise InvalidInputError(
            f"Scripted: {name} of a reply is {values!r:.60}, {len(values)} numbers for {count} tokens (a text's tokens "
            "include the stop token); give one number for each token"
        )
    return np.array(values, dtype=np.float32)
