"""Texts of tokens as bytes, so that characters that span several tokens are decoded correctly."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from agentrl_core.exceptions import InvalidInputError, MissingDependencyError

PLACES = ("tokenizer", "start")
"""Folders of a run that may have its tokenizer: those of the collector, and of `agentrl train`."""


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of each token of a tokenizer.

    Args:
        offsets: start of the bytes of each token in `text`, and the end.
        text: the concatenated bytes of all tokens.
        special: mask of the tokens that are markers of the template, not text.
        known: mask of the ids that are tokens.
    """

    offsets: NDArray[np.int64]
    text: NDArray[np.uint8]
    special: NDArray[np.bool_]
    known: NDArray[np.bool_]

    @classmethod
    def of(cls, tokenizer: Any) -> Self:
        """Return the vocabulary of a tokenizer.

        Args:
            tokenizer: a `tokenizer.json`, a directory with one, a run with its tokenizer, a fast tokenizer of Hugging
                Face, one of the package tokenizers, or a vocabulary.

        Raises:
            InvalidInputError: the value is none of these, or there is no such file.
            MissingDependencyError: a file is given, and the package tokenizers is not installed.
        """
        if isinstance(tokenizer, cls):
            return tokenizer
        core = tokenizer if hasattr(tokenizer, "get_vocab") and hasattr(tokenizer, "to_str") else None
        if core is None and hasattr(tokenizer, "backend_tokenizer"):
            core = tokenizer.backend_tokenizer
        if core is None:
            core = _read(tokenizer)
        return cls.from_bytes(*_bytes_of(core))

    @classmethod
    def from_bytes(cls, given: dict[int, bytes], special: set[int]) -> Self:
        """Create a vocabulary from the bytes of each id."""
        count = max(given, default=-1) + 1
        known = np.zeros(count, bool)
        known[list(given)] = True
        lengths = np.array([len(given.get(token, b"")) for token in range(count)], np.int64)
        marks = np.zeros(count, bool)
        marks[[token for token in special if token < count]] = True
        text = np.frombuffer(b"".join(given.get(token, b"") for token in range(count)), np.uint8)
        return cls(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), text, marks, known)

    @classmethod
    def find(cls, run: str | PathLike[str]) -> Self | None:
        """Return the vocabulary of a run's tokenizer; None without a tokenizer or the package tokenizers."""
        for place in PLACES:
            file = Path(run, place, "tokenizer.json")
            if file.is_file():
                try:
                    return cls.of(file)
                except MissingDependencyError:
                    return None
        return None

    def texts(self, tokens: pl.Series) -> pl.Series:
        r"""Return the text of each list of tokens; null for no list. An id that is not a token becomes `<id>`.

        Example:
            >>> import polars as pl
            >>> from agentrl_core.integrations.polars.vocabulary import Vocabulary
            >>> words = Vocabulary.from_bytes({0: b"a", 1: b"\xc3", 2: b"\xa9"}, set())
            >>> words.texts(pl.Series([[0, 1, 2], [], None])).to_list()
            ['aé', '', None]
        """
        lengths = tokens.list.len().fill_null(0).to_numpy().astype(np.int64)
        flat = tokens.filter(tokens.list.len().fill_null(0) > 0).list.explode().to_numpy().astype(np.int64)
        unknown = (flat < 0) | (flat >= len(self.known))
        unknown[~unknown] = ~self.known[flat[~unknown]]
        offsets, text = self.offsets, self.text
        if unknown.any():  # names for ids that the tokenizer does not have, behind its own
            ids, place = np.unique(flat[unknown], return_inverse=True)
            names = [f"<{token}>".encode() for token in ids.tolist()]
            flat[unknown] = len(offsets) - 1 + place
            text = np.concatenate([text, np.frombuffer(b"".join(names), np.uint8)])
            offsets = np.concatenate([offsets, offsets[-1] + np.cumsum([len(name) for name in names])])
        sizes = np.diff(offsets)[flat]
        ends = np.cumsum(sizes)
        source = np.arange(ends[-1] if len(ends) else 0) + np.repeat(offsets[flat] - (ends - sizes), sizes)
        joined = text[source].tobytes()
        bounds = np.concatenate([np.zeros(1, np.int64), ends])[
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        ]
        places = bounds.tolist()
        decoded = [joined[begin:end].decode(errors="replace") for begin, end in pairwise(places)]
        present = tokens.is_not_null().to_list()
        texts = [text if is_present else None for text, is_present in zip(decoded, present, strict=True)]
        return pl.Series(tokens.name, texts, dtype=pl.String)


def _read(path: Any) -> Any:
    """Return the tokenizer of a file or a directory."""
    try:
        location = Path(path)
    except TypeError:
        raise InvalidInputError(
            f"tokenizer is a {type(path).__name__}; give a fast tokenizer, a tokenizer.json, or its directory"
        ) from None
    places = [location / "tokenizer.json", *(location / place / "tokenizer.json" for place in PLACES)]
    file = next(filter(Path.is_file, places), places[0]) if location.is_dir() else location
    if not file.is_file():
        raise InvalidInputError(f"tokenizer={str(path)!r}: there is no {file}; give a tokenizer.json or its directory")
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError:
        raise MissingDependencyError("the package tokenizers is needed: pip install 'agentrl-core[cli]'") from None
    try:
        return Tokenizer.from_buffer(file.read_bytes())  # from_file takes no path that is not UTF-8
    except Exception as error:  # noqa: BLE001  # the package raises nothing narrower
        raise InvalidInputError(
            f"tokenizer: {file} is not a tokenizer ({error}); give a tokenizer.json or its directory"
        ) from None


def _bytes_of(core: Any) -> tuple[dict[int, bytes], set[int]]:
    """Return the bytes of every token, and which are special."""
    added_tokens = core.get_added_tokens_decoder()
    special = {token for token, about in added_tokens.items() if about.special}
    decoder = json.dumps(json.loads(core.to_str()).get("decoder"), ensure_ascii=False)
    vocabulary: dict[str, int] = core.get_vocab(with_added_tokens=False)
    if "ByteLevel" in decoder:
        letters = _letters()
        token_bytes = {token: _from_letters(text, letters) for text, token in vocabulary.items()}
    elif any(name in decoder for name in ("\u2581", "Metaspace", "ByteFallback")):
        token_bytes = {token: _from_piece(text) for text, token in vocabulary.items()}
    else:
        texts = core.decode_batch([[token] for token in vocabulary.values()], skip_special_tokens=False)
        token_bytes = {token: text.encode() for token, text in zip(vocabulary.values(), texts, strict=True)}
    token_bytes |= {token: about.content.encode() for token, about in added_tokens.items()}
    return token_bytes, special


def _letters() -> dict[str, int]:
    """Return the byte of each letter in byte-level tokenizers (GPT-2), in which printable bytes are themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _from_letters(text: str, letters: dict[str, int]) -> bytes:
    if all(letter in letters for letter in text):
        return bytes(letters[letter] for letter in text)
    return text.encode()


def _from_piece(text: str) -> bytes:
    """Return the bytes of a piece of SentencePiece: `<0x0A>` is a byte, and `U+2581` a space."""
    if len(text) == len("<0x0A>") and text.startswith("<0x") and text.endswith(">"):
        return bytes([int(text[3:5], 16)])
    return text.replace("\u2581", " ").encode()


def used(vocabulary: Vocabulary, tokens: Sequence[int]) -> pl.DataFrame:
    """Return the known tokens among some ids, with their bytes, as a frame."""
    ids = [token for token in tokens if 0 <= token < len(vocabulary.known) and vocabulary.known[token]]
    text_bytes = vocabulary.text.tobytes()
    return pl.DataFrame(
        {
            "token": pl.Series(ids, dtype=pl.Int32),
            "text": pl.Series(
                [text_bytes[vocabulary.offsets[token] : vocabulary.offsets[token + 1]] for token in ids],
                dtype=pl.Binary,
            ),
            "special": pl.Series([int(vocabulary.special[token]) for token in ids], dtype=pl.UInt8),
        }
    )
