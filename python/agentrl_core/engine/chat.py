"""The tokens of a chat, from the chat template of a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError, UnsupportedError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Contents that no template holds, so that they can be found in what it renders.
_QUESTION = "agentrl question"
_ANSWER = "agentrl answer"
_RESULT = "agentrl result"
_FIRST_TURNS = (("user", _QUESTION), ("assistant", _ANSWER))


class Chat:
    """Text to tokens and back for one tokenizer with a chat template.

    A conversation is built piece by piece, and no generated token is ever tokenised again:

        prompt(question) + action + observation(result) + action + ...

    where an action is what the model generated, its stop token included. The pieces joined are the tokens of the whole
    conversation rendered at once, wherever the template renders a turn alike whatever comes after it.

    Args:
        tokenizer: a Hugging Face tokenizer with a `chat_template`.

    Raises:
        InvalidInputError: the tokenizer has no chat template.
        UnsupportedError: the template does not end an assistant's turn with a token of its own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer: Any = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise InvalidInputError(
                f"Chat: the tokenizer {tokenizer.name_or_path!r} has no chat_template; "
                f"set tokenizer.chat_template or take the tokenizer of an instruction-tuned model"
            )
        self._observation_role = "tool" if self._renders_tool() else "user"
        self.end_of_turn = self._find_end_of_turn()
        """The token that ends an assistant's turn."""
        stops = dict.fromkeys((self.end_of_turn, self.tokenizer.eos_token_id))
        self.stop_token_ids: tuple[int, ...] = tuple(token for token in stops if token is not None)
        """What a segment must stop at: the end of the turn, and the end of the text where that is another token."""
        # Prompts repeat within a group and short tool results repeat a lot; rendering one takes about 0.1 ms.
        self._cached_prompt = lru_cache(maxsize=4096)(self._prompt)
        self._cached_observation = lru_cache(maxsize=4096)(self._observation)

    def prompt(self, text: str) -> NDArray[np.int32]:
        """The tokens up to the first action, int32 [n]: a user's turn with `text`, the opening of the assistant's."""
        return self._cached_prompt(text).copy()

    def observation(self, text: str) -> NDArray[np.int32]:
        """The tokens between two actions: all from behind the stop token of the first to before the second. int32 [n].

        `text` takes the role "tool" where the template renders that role, else "user".
        """
        return self._cached_observation(text).copy()

    def action(self, text: str) -> NDArray[np.int32]:
        """The tokens of an action that a script or an expert writes, its stop token included. int32 [n]."""
        return np.append(self._encode(text), np.int32(self.end_of_turn))

    def decode(self, tokens: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """The text of an action, without its stop token."""
        ids = np.asarray(tokens, dtype=np.int64).tolist()
        if ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return str(self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _prompt(self, text: str) -> NDArray[np.int32]:
        return self._encode(self._render(("user", text), open_turn=True))

    def _observation(self, text: str) -> NDArray[np.int32]:
        rendered = self._render(*_FIRST_TURNS, (self._observation_role, text), open_turn=True)
        end = self.tokenizer.convert_ids_to_tokens(self.end_of_turn)
        behind_answer = rendered.index(_ANSWER) + len(_ANSWER)
        return self._encode(rendered[rendered.index(end, behind_answer) + len(end) :])

    def _render(self, *turns: tuple[str, str], open_turn: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in turns]
        return str(self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=open_turn))

    def _encode(self, rendered: str) -> NDArray[np.int32]:
        return np.asarray(self.tokenizer(rendered, add_special_tokens=False)["input_ids"], dtype=np.int32)

    def _renders_tool(self) -> bool:
        from jinja2 import TemplateError

        try:
            return _RESULT in self._render(*_FIRST_TURNS, ("tool", _RESULT), open_turn=True)
        except TemplateError:  # many templates refuse roles that they do not know
            return False

    def _find_end_of_turn(self) -> int:
        rendered = self._render(*_FIRST_TURNS, open_turn=False)
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        behind_answer = rendered[rendered.index(_ANSWER) + len(_ANSWER) :]
        for token in self._encode(behind_answer).tolist():
            if token in special:
                return int(token)
        raise UnsupportedError(
            f"Chat: the template of tokenizer {self.tokenizer.name_or_path!r} ends an assistant's turn without a "
            f"special token ({behind_answer!r}); take a template that writes one"
        )
