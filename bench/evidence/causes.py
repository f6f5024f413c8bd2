"""Causes: reasons why recipes of the screening do not improve, and why others are refused. Evidence: `causes.toml`."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).parent / "causes.toml"
KINDS = {
    "rate": "the learning rate of GRPO is too high for this recipe; it improves at a lower one",
    "budget": "the mechanism needs more iterations or more generated tokens than a run has",
    "scale": "it needs longer answers, a larger model or a model that follows instructions",
    "world": "it needs facts, actions or rewards that the worlds do not have",
    "bug": "the recipe or a component differed from its source; it is fixed and runs again",
    "open": "not found yet",
}
"""Kinds of causes, in the order of the page."""
REASONS = {
    "reads facts": "facts about rollouts that these worlds do not report",
    "the pool has no column": "a column of tasks that these worlds do not have",
    "selects none": "tasks of other domains",
    "needs column": "a column of a model that the loop does not compute",
    "trains model": "a further trained model",
    "with several values": "a critic with several values",
    "modifies model": "a further copy of a model",
    "on separate data": "a stage with data of its own",
    "queries model": "a model that is queried during rollouts",
    "needs a value head": "a value head on the policy",
    "a second environment": "a second environment",
    "multi-agent environment": "several agents",
}
"""Reasons why the loop refuses a recipe, by a phrase of the error. Of several phrases the last one counts."""


class Cause(NamedTuple):
    """The reason why a recipe does not improve.

    Attributes:
        cause: one of `KINDS`.
        text: the evidence in one sentence.
    """

    cause: str
    text: str


def load() -> dict[str, Cause]:
    """Return the known causes by recipe.

    Raises:
        ValueError: an entry has another kind of cause, or no sentence.
    """
    causes_by_name = {name: Cause(**entry) for name, entry in tomllib.loads(FILE.read_text(encoding="utf-8")).items()}
    for name, (cause, text) in causes_by_name.items():
        if cause not in KINDS:
            raise ValueError(f"{FILE.name}: {name}.cause is {cause!r}; write one of {', '.join(KINDS)}")
        if not text.endswith("."):
            raise ValueError(f"{FILE.name}: {name}.text is {text!r}; write a sentence")
    return causes_by_name


def cause_rows(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return recipe, cause and evidence of recipes that do not improve, by kind; those without an entry are open."""
    known, kinds = load(), list(KINDS)
    rows = [(name, *known.get(name, Cause("open", "Not looked into yet."))) for name in names]
    return sorted(rows, key=lambda row: (kinds.index(row[1]), row[0]))


def kind_rows(names: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return each kind of cause, its meaning, and the number of recipes that have it."""
    causes = [cause for _, cause, _ in cause_rows(names)]
    return [(kind, meaning, causes.count(kind)) for kind, meaning in KINDS.items() if kind in causes]


def refusal_rows(errors: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """Return the reasons of refusals with their recipes, the most frequent first.

    Args:
        errors: the error of each refused recipe.
    """
    names = defaultdict(list)
    for name, error in errors.items():
        names[reason(error)].append(f"`{name}`")
    rows = [(why, len(of), ", ".join(of)) for why, of in names.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def reason(error: str) -> str:
    """Return the reason of a refusal; the error itself if it has no known phrase."""
    return next((why for phrase, why in reversed(REASONS.items()) if phrase in error), error)


def refused(study: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the error of each refused recipe of a screening."""
    return {each["arm"]: each["error"] for each in study if each["status"] == "refused"}
