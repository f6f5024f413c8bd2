"""A library of learned texts, such as insights and demonstrations."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from agentrl_core import _core
from agentrl_core.component import column_name, option
from agentrl_core.component.rows import Rows
from agentrl_core.component.state import IterationRecord, State
from agentrl_core.data.batch import Batch
from agentrl_core.exceptions import NotFoundError
from agentrl_core.replay.base import Replay

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class TextEntry:
    """A text of the library, with its statistics.

    Attributes:
        text_id: its number, which is never reused.
        text: the text.
        born: the iteration that added it.
        value: smoothed score of the rollouts that used it; None: not used yet.
        uses: how many rollouts used it.
        used_last: the last iteration that used it; -1: none.
    """

    text_id: int
    text: str
    born: int
    value: float | None = None
    uses: int = 0
    used_last: int = -1


@dataclass(frozen=True)
class TextLibrary(Replay):
    """Remember texts that rollouts propose, and offer them to programs of later iterations.

    A program proposes changes in a fact of its trajectories, a JSON list of edits. Another fact lists the numbers of
    the texts that it used, with commas between:

        [{"edit": "add", "text": "..."}, {"edit": "update", "id": 3, "text": "..."}, {"edit": "delete", "id": 4}]

    The edits of an iteration apply at its end, in the order of its trajectories. A delete wins over updates of the same
    entry; of several updates the last wins. An update of a missing entry adds one; an existing text is not added again.
    Malformed edits are ignored. A program reads the library as of the start of the iteration:
    `recipe.replay.read(group.state.get("replay[0].TextLibrary"), 5)`.

    Sources: Training-Free GRPO, arXiv:2510.08191 (edits merged by batch); ARISE, code Skylanding/ARISE (values).

    Args:
        edits: key column of draws, a fact, with edits; draws without a value propose nothing.
        used: key column of draws with the numbers of the texts that a rollout used; empty: unknown.
        capacity: largest number of entries; None: unlimited.
        keeps: which entries stay if there are more: the `newest`, the `best` (by value; unused ones count as best), or
            those `used` last (ties: the newest).
        decay: weight of the old value when another use is scored, from 0 to 1.

    Raises:
        RecipeError: an option is out of range.

    Example:
        >>> from agentrl_core.replay.text_library import TextLibrary
        >>> library = TextLibrary(capacity=100)
        >>> state = library.edited(library.initial_state(), [[{"edit": "add", "text": "Check the sign."}]], iteration=0)
        >>> [entry.text for entry in library.read(state, 3)]
        ['Check the sign.']
    """

    edits: str = column_name("edits", level="draw", optional=True)
    used: str = column_name("", level="draw", optional=True)
    capacity: int | None = option(None, at_least=1)
    keeps: Literal["newest", "best", "used"] = "newest"
    decay: float = option(0.9, at_least=0, at_most=1)

    def initial_state(self) -> State:
        """Return an empty library."""
        return {"entries": [], "next": 0}

    def read(
        self,
        state: State | None,
        count: int,
        *,
        order: Literal["newest", "best", "similar", "uniform"] = "newest",
        query: str = "",
        key: int = 0,
    ) -> list[TextEntry]:
        """Return the first `count` entries of the library by `order`.

        Args:
            state: state of the library; None: empty.
            count: largest number of entries.
            order: the `newest`, the `best` by value (unused ones last), the most `similar` to `query` (words in common
                over words of both), or `uniform` at random.
            query: see `order`.
            key: key of the random order.
        """
        entries = _entries(state or self.initial_state())
        ids = np.array([entry.text_id for entry in entries], np.int64)
        match order:
            case "newest":
                ranks = -ids.astype(np.float64)
            case "best":
                ranks = np.array([np.inf if entry.value is None else -entry.value for entry in entries])
            case "similar":
                ranks = -np.array([_in_common(query, entry.text) for entry in entries])
            case "uniform":
                ranks = _core.replay.race(ids, key=key)
        return [entries[row] for row in np.argsort(ranks, kind="stable")[:count].tolist()]

    def next(self, state: State, closed: IterationRecord) -> State:
        """Return the library after an iteration: update values of used entries, then apply the edits."""
        if self.used:
            state = self._valued(state, closed)
        return self.edited(
            state, [_parsed(edits) for edits in _texts_of(closed.finished, self.edits)], closed.iteration
        )

    def edited(self, state: State, proposals: Iterable[object], iteration: int) -> State:
        """Apply edits to the library: one list of edits per rollout, as in the class description."""
        edits = [edit for proposal in proposals if isinstance(proposal, list) for edit in proposal]
        edits = [edit for edit in edits if isinstance(edit, dict)]
        entries = {entry.text_id: entry for entry in _entries(state)}
        deleted = {edit.get("id") for edit in edits if edit.get("edit") == "delete"}
        following, known = int(state["next"]), {entry.text for entry in entries.values()}
        for edit in edits:
            text, place = edit.get("text"), edit.get("id")
            if edit.get("edit") not in ("add", "update") or not isinstance(text, str) or not text.strip():
                continue
            if edit["edit"] == "update" and place in entries:
                entries[place] = replace(entries[place], text=text)
            elif text not in known and place not in deleted:
                entries[following] = TextEntry(following, text, iteration)
                following += 1
            known.add(text)
        remaining = [entry for entry in entries.values() if entry.text_id not in deleted]
        return {"entries": [vars(entry) for entry in self._kept(remaining)], "next": following}

    def _kept(self, entries: list[TextEntry]) -> list[TextEntry]:
        if self.capacity is None or len(entries) <= self.capacity:
            return entries

        def rank(entry: TextEntry) -> tuple[float, int]:
            by = {"newest": 0.0, "best": np.inf if entry.value is None else entry.value, "used": entry.used_last}
            return by[self.keeps], entry.text_id

        chosen = sorted(entries, key=rank)[len(entries) - self.capacity :]
        return sorted(chosen, key=lambda entry: entry.text_id)

    def _valued(self, state: State, closed: IterationRecord) -> State:
        """Update the values of entries with the scores of rollouts that used them."""
        finished = closed.finished
        if not finished.num_draws or not finished.has("score", "draw"):
            return state
        scores: dict[int, list[float]] = {}
        for ids, score in zip(
            _texts_of(finished, self.used), Rows(finished, "draw").values("score").tolist(), strict=True
        ):
            for number in {int(part) for part in ids.split(",") if part.strip().isdecimal()}:
                if np.isfinite(score):
                    scores.setdefault(number, []).append(score)
        entries = []
        for entry in _entries(state):
            new = scores.get(entry.text_id)
            if new:
                mean = float(np.mean(new))
                value = mean if entry.value is None else self.decay * entry.value + (1.0 - self.decay) * mean
                entry = replace(entry, value=value, uses=entry.uses + len(new), used_last=closed.iteration)  # noqa: PLW2901
            entries.append(vars(entry))
        return {**state, "entries": entries}


def _entries(state: State) -> list[TextEntry]:
    return [TextEntry(**entry) for entry in state["entries"]]


def _texts_of(batch: Batch, name: str) -> list[str]:
    """Return the texts of a key column for the draws of a batch; empty if missing."""
    if not batch.num_draws:
        return []
    try:
        return [value or "" for value in batch.texts(name, "draw")]
    except NotFoundError:
        return [""] * batch.num_draws


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        return None


def _in_common(query: str, text: str) -> float:
    """Return the number of words that two texts have in common over the number of distinct words of both together."""
    first, second = ({word.lower() for word in _WORD.findall(part)} for part in (query, text))
    return len(first & second) / max(len(first | second), 1)
