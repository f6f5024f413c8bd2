"""Decode tokens to text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agentrl_core.cli._terminal import escaped
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.integrations.polars.vocabulary import PLACES

_UNFINISHED = "\ufffd"
_LONGEST_CHARACTER = 4  # bytes, hence tokens


class Detokenizer:
    """Decode tokens with a tokenizer or, without one, show their ids.

    Args:
        decode: function from a list of tokens to text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str] | None = None) -> None:
        self._decode = decode

    @classmethod
    def find(cls, run: str, given: str | None) -> Detokenizer:
        """Create a detokenizer from the given tokenizer, or else from that of the run.

        Raises:
            InvalidInputError: the given path has no tokenizer.
            ModuleNotFoundError: one is given, but the package tokenizers is not installed.
        """
        candidates = [Path(run, place) for place in PLACES]
        path = next(filter(Path.is_dir, candidates), candidates[0]) if given is None else Path(given)
        file = path / "tokenizer.json" if path.is_dir() else path
        if not file.is_file():
            if given is None:
                return cls()
            raise InvalidInputError(
                f"--tokenizer {given}: {file} does not exist; give a tokenizer.json or its directory"
            )
        try:
            from tokenizers import Tokenizer
        except ModuleNotFoundError:
            if given is None:
                return cls()
            raise
        try:
            tokenizer = Tokenizer.from_buffer(file.read_bytes())
        except Exception as error:  # noqa: BLE001  # the package raises nothing narrower
            raise InvalidInputError(
                f"--tokenizer: {file} is not a tokenizer: {error}; give the folder that tokenizer.save_pretrained wrote"
            ) from None
        return cls(lambda tokens: str(tokenizer.decode(list(tokens), skip_special_tokens=False)))

    def pieces(self, tokens: Sequence[int]) -> list[str]:
        """Return the text of each token; a character of several tokens is in the text of the last one."""
        if self._decode is None:
            return [f"{token} " for token in tokens]
        texts: list[str] = []
        begin = 0
        for end in range(1, len(tokens) + 1):
            # The previous token preserves the space that decoders drop at the start of a text.
            context = tokens[max(begin - 1, 0) : begin]
            before = self._decode(context) if context else ""
            text = self._decode([*context, *tokens[begin:end]])[len(before) :]
            if text.endswith(_UNFINISHED) and end < len(tokens) and end - begin < _LONGEST_CHARACTER:
                texts.append("")
                continue
            texts.append(escaped(text))
            begin = end
        return texts

    def preview(self, tokens: Sequence[int], length: int) -> str:
        """Return the beginning of a text in one line, up to a number of characters."""
        text = "".join(self.pieces(tokens[:length])).replace("\n", "⏎")
        return text if len(text) <= length and len(tokens) <= length else text[: length - 1] + "…"
