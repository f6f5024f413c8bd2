"""A teacher in vLLM in this process: log-probs of given tokens, and its likeliest tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from agentrl_core.engine.base import Sampling, generate_all
from agentrl_core.engine.prompt_scores import PromptRequest, ScoredPrompt
from agentrl_core.engine.teacher_requests import Scores, Tokens, teacher_answers
from agentrl_core.engine.vllm import Vllm
from agentrl_core.exceptions import EngineError, InvalidInputError

if TYPE_CHECKING:
    from torch import Tensor

    from agentrl_core.model.pack import Pack


class TeacherEngine:
    """A teacher in an `engine.Vllm` of this process; give it to `arl.annotate` in place of a model.

    Each sequence of a pack is one request; vLLM batches them, among requests to generate if there are any. It scores at
    temperature 1, so tokens that were sampled at another temperature are refused. A sequence and one more token have to
    fit into `max_model_len`, and `top_k` into `max_logprobs` (20). `Vllm.update_weights` makes the teacher follow a
    model.

    Args:
        engine: the engine of the teacher.
        top_k: number of most likely tokens, as in `annotate`; None: only log-probs of the given tokens.
        tokenizer: tokenizer of the policy, which must equal that of the engine; None: not compared.

    Raises:
        InvalidInputError: an option is out of range, the engine is not a `Vllm`, or the tokenizers differ.

    Example:
        >>> from agentrl_core.engine.teacher_engine import TeacherEngine
        >>> TeacherEngine("http://127.0.0.1:8000")
        Traceback (most recent call last):
        agentrl_core.exceptions.InvalidInputError: engine is 'http://127.0.0.1:8000'; give an engine.Vllm, or ...
    """

    def __init__(self, engine: Vllm, *, top_k: int | None = None, tokenizer: Any = None) -> None:
        untyped: object = engine
        if not isinstance(untyped, Vllm):
            raise InvalidInputError(
                f"engine is {untyped!r:.80}; give an engine.Vllm, or use the class "
                "agentrl_core.engine.teacher_server.TeacherServer with the address of a server"
            )
        number: object = 1 if top_k is None else top_k
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise InvalidInputError(f"top_k is {top_k!r}; give a whole number of at least 1, or None")
        if tokenizer is not None:
            from agentrl_core.model.teacher import check_tokenizers

            check_tokenizers((tokenizer, engine.chat.tokenizer))
        self.engine, self.top_k = engine, top_k

    def __call__(self, pack: Pack) -> Tensor | tuple[Tensor, Tensor, Tensor]:
        """Return log-probs of a pack's targets `[N]`; with `top_k` also ids and log-probs of the likeliest `[N, k]`.

        Raises:
            UnsupportedError: the pack shows images.
            InvalidInputError: a token was sampled at another temperature than 1, `top_k` exceeds `max_logprobs`, a
                sequence is too long for the engine, or the engine is closed.
            DataError: a token is outside the engine's vocabulary.
            EngineError: a step failed, or the engine's weights were replaced before all sequences were scored.
        """
        return teacher_answers(pack, self.top_k, self._score)

    def _score(self, prompts: list[Tokens], places: list[Tokens]) -> Scores:
        sampling = Sampling(max_tokens=1, top=self.top_k or 0)
        requests = [PromptRequest(prompt.astype(np.int32), 0, sampling) for prompt in prompts]
        segments = generate_all(self.engine, requests)
        # A request that was aborted before its first step has no scores.
        tables = [each.scores for each in segments if isinstance(each, ScoredPrompt) and each.scores is not None]
        if len(tables) < len(requests) or len({each.policy_version for each in segments}) > 1:
            raise EngineError(
                "annotate: the teacher's weights were replaced, or the engine was closed, before all sequences were "
                "scored; annotate the batch again"
            )
        return [table[place - 1] for table, place in zip(tables, places, strict=True)]
