"""Prompts and completions that were decoded without special tokens, such as in verl's dumps, checked by rendering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentrl_core.engine.chat_renderer import ANSWER, QUESTION
from agentrl_core.engine.chat_template import ChatTemplate
from agentrl_core.exceptions import InvalidInputError, UnsupportedError
from agentrl_core.integrations.trajectories.trajectory_record import TrajectoryTurn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PROMPT, COMPLETION = "decoded_prompt", "decoded_completion"
"""The keys of the two texts in a record."""
_SYSTEM = {"role": "system", "content": "agentrl instruction"}
_NEXT = {"role": "user", "content": "agentrl next question"}


def is_decoded(record: Mapping[str, Any]) -> bool:
    """Return whether a record has texts that were decoded without special tokens."""
    return record.get(PROMPT) is not None and record.get(COMPLETION) is not None


def decoded_turn(
    record: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, template: ChatTemplate, where: str
) -> TrajectoryTurn:
    """Return the turn of a record, with the special tokens that its texts lack.

    The prompt is the only question, with or without a system message, whose rendering equals the recorded text after
    tokenising and decoding without special tokens. The completion is trained without an end token, since the record
    does not show whether the model sampled one.

    Raises:
        InvalidInputError: the completion is empty.
        UnsupportedError: no such rendering equals the text, or several do; or the completion has several turns.
    """
    prompt, completion = str(record[PROMPT]), str(record[COMPLETION])
    if not completion:
        raise InvalidInputError(f"{where}: the completion is empty; leave the record out")
    plain = _Plain(tokenizer)
    fitting = {
        rendered
        for rendered in (template.render(chat, open_turn=True) for chat in _chats(prompt, template, plain))
        if plain(rendered) == prompt
    }
    if len(fitting) != 1:
        how = "several chats render to it" if fitting else "no chat with one user message renders to it"
        tokenizer_remedy = "" if fitting else "the tokenizer that made the prompt, or "
        raise UnsupportedError(
            f"{where}: prompt is {prompt!r:.60}, but {how} once special tokens are removed; give {tokenizer_remedy}a "
            "record with token ids"
        )
    marker = _between(template, plain)
    if marker.strip() and marker in completion:
        raise UnsupportedError(
            f"{where}: completion has several turns (it contains {marker!r:.40}), but no mask of the sampled tokens; "
            "give a record with token ids and masks"
        )
    [context] = fitting
    return TrajectoryTurn(template.encode(context), template.encode(completion, after=context))


class _Plain:
    """Tokenises a text, and decodes it without special tokens."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> str:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _chats(prompt: str, template: ChatTemplate, plain: _Plain) -> list[list[dict[str, Any]]]:
    """Return the chats of one question that may be the source of a decoded prompt."""
    chats: list[list[dict[str, Any]]] = []
    begin, _, end = plain(template.render([QUESTION], open_turn=True)).partition(QUESTION["content"])
    if prompt.startswith(begin) and prompt.endswith(end) and len(prompt) > len(begin) + len(end):
        chats.append([{"role": "user", "content": prompt[len(begin) : len(prompt) - len(end)]}])
    try:
        rendered = plain(template.render([_SYSTEM, QUESTION], open_turn=True))
    except UnsupportedError:  # the template refuses system messages
        return chats
    begin, _, rest = rendered.partition(_SYSTEM["content"])
    middle, _, end = rest.partition(QUESTION["content"])
    if not middle or not (prompt.startswith(begin) and prompt.endswith(end)):
        return chats
    inner = prompt[len(begin) : len(prompt) - len(end)]
    position = inner.find(middle)
    while position >= 0:
        system, question = inner[:position], inner[position + len(middle) :]
        chats.append([{"role": "system", "content": system}, {"role": "user", "content": question}])
        position = inner.find(middle, position + 1)
    return chats


def _between(template: ChatTemplate, plain: _Plain) -> str:
    """Return the decoded text between an answer and the next question."""
    messages: Sequence[dict[str, Any]] = [QUESTION, ANSWER, _NEXT]
    rest = plain(template.render(messages)).rpartition(ANSWER["content"])[2]
    return rest.partition(_NEXT["content"])[0]
