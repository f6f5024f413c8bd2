"""A tool that searches your own documents."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from agentrl_core.env.base import ToolReply
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError


class Search:
    """Tool that searches documents by BM25, with the package `bm25s`.

    The reply has the best documents, numbered, best first, each truncated to `max_characters`; ties are in the given
    order. Words are those of `bm25s.tokenize`: lower case, letters and digits, without English stop words. If no
    document has a word of the query, the reply is `nothing found`, which is not an error.

    Args:
        documents: the corpus; it is indexed in memory once.
        top: number of documents in a reply.
        max_characters: displayed length of a document.
        name: the tool's name, if there are several corpora.
        description: description of the corpus for the model.

    Raises:
        MissingDependencyError: bm25s is not installed.
        InvalidInputError: no document, or an argument out of range.

    Example:
        >>> search = Search(["The lake is frozen.", "The taxi waits at the lake.", "A deck of cards."], top=1)
        >>> search("who waits?").text
        '[1] The taxi waits at the lake.'
        >>> search("zebra")
        ToolReply(text='nothing found', error=False)
    """

    runs: ClassVar = "inline"
    argument: ClassVar = "query"

    def __init__(
        self,
        documents: Sequence[str],
        *,
        top: int = 3,
        max_characters: int = 500,
        name: str = "search",
        description: str = "Searches a collection of documents and returns the best.",
    ) -> None:
        if isinstance(documents, str) or not documents:
            raise InvalidInputError(f"Search: documents is {documents!r:.60}; give a list of at least one text")
        untyped: Sequence[object] = documents
        for place, document in enumerate(untyped):
            if not isinstance(document, str):
                raise InvalidInputError(f"Search: documents[{place}] is {document!r:.60}; give a text")
        if top < 1 or max_characters < 1:
            option, value = ("top", top) if top < 1 else ("max_characters", max_characters)
            raise InvalidInputError(f"Search: {option} is {value}; give at least 1")
        self.name = name
        self.description = description
        self._documents = list(documents)
        self._top = top
        self._max_characters = max_characters
        self._bm25s = _bm25s()
        self._known: dict[str, int] = {}
        rows = [[self._known.setdefault(word, len(self._known)) for word in self._words(each)] for each in documents]
        if not self._known:
            raise InvalidInputError(
                "Search: no document has a word that can be searched for; give documents with letters or digits"
            )
        self._index = self._bm25s.BM25()
        self._index.index((rows, self._known), show_progress=False)

    def __call__(self, text: str) -> ToolReply:
        """Return the best documents for the query `text`; see the class."""
        words = [self._known[word] for word in self._words(text) if word in self._known]
        if not words:
            return ToolReply("nothing found", error=False)
        scores = self._index.get_scores_from_ids(words)
        best = np.argsort(-scores, kind="stable")[: self._top]
        documents = [self._documents[number][: self._max_characters] for number in best if scores[number] > 0]
        if not documents:
            return ToolReply("nothing found", error=False)
        return ToolReply("\n".join(f"[{place}] {text}" for place, text in enumerate(documents, start=1)), error=False)

    def _words(self, text: str) -> list[str]:
        (words,) = self._bm25s.tokenize([text], return_ids=False, show_progress=False)
        return list(words)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_bm25s": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _bm25s=_bm25s())


def _bm25s() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it reports its missing optional packages
            import bm25s
    except ImportError as error:
        raise MissingDependencyError("Search needs the package bm25s: pip install 'agentrl-core[search]'") from error
    return bm25s
