"""Compare a recipe with its paper file: which examples run, which entries match, which are missing."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from paper_files import FOLDER, Paper
from paper_numbers import PaperExamples

from agentrl_core import recipes
from agentrl_core.cli._recipe_page import Entry, RecipePage
from agentrl_core.loss import Clip, Policy, Train
from agentrl_core.recipe import Recipe

NUMBERS = FOLDER.parent / "numbers"
RECIPES = {
    "eighty_twenty": "forking_tokens",
    "r_star2_agent": "rstar2",
    "reinforce_pp": "reinforce_plus_plus",
    "treepo": "tree_po",
}
"""Names of recipes that differ from the names of their paper files."""
_NOT_COMPUTED = re.compile(r"\bnot computed: .+")


@dataclass(frozen=True)
class Comparison:
    """A paper file, the page of its recipe, and the examples that its test computes."""

    paper: Paper
    page: RecipePage
    computed: frozenset[str]
    """Numbers of the equations that a computed example uses."""

    @classmethod
    def of(cls, name: str) -> Comparison:
        """Return the comparison of a paper file.

        Raises:
            KeyError: no recipe is of this paper.
        """
        recipe = RECIPES.get(name, name)
        if recipe not in recipes.names():
            raise KeyError(name)
        examples = _examples(NUMBERS / f"test_{name}_paper.py")
        equations = frozenset(examples.equations) if examples else frozenset()
        return cls(Paper.read(FOLDER / f"{name}.toml"), RecipePage.of(recipe), equations)

    @property
    def numbers(self) -> list[str]:
        """Numbers of the paper's equations."""
        return [equation["number"] for equation in self.paper.table["equations"]]

    @property
    def entries(self) -> dict[str, Entry]:
        """Entries of the recipe's section `Equations`, by number."""
        return {number: entry for entry in self.page.equations for number in entry.numbers}

    @property
    def _listed(self) -> list[str]:
        return [number for entry in self.page.equations for number in entry.numbers]

    def problems(self) -> list[str]:
        """Return the gaps of the comparison as sentences; empty if it is complete."""
        problems = []
        if not self.page.equations:
            problems.append("the recipe has no section Equations")
        twice = [number for number, count in Counter(self._listed).items() if count > 1]
        problems += [f"Equations has two entries for {number}" for number in twice]
        if unknown := self.entries.keys() - set(self.numbers):
            problems.append(f"Equations has {sorted(unknown)}, which the paper file has not")
        for number in self.numbers:
            entry = self.entries.get(number)
            if entry is None:
                problems.append(f"Equations has no entry for {number}")
            elif not (number in self.computed or entry.left_out or _NOT_COMPUTED.search(entry.text)):
                problems.append(
                    f"no example that runs uses {number}, and its entry has no `left out: why` or `not computed: why`"
                )
        stated = [entry.name for entry in self.page.differences]
        for name, start, theirs, ours in self._settings():
            if theirs != ours and not any(each.startswith(start) for each in stated):
                problems.append(f"{name} is {theirs} in the source and {ours} here; Differs has no entry `{start} ...`")
        return problems

    def _settings(self) -> list[tuple[str, str, float, float]]:
        """Return hyperparameters that both give as numbers: name, start of an entry in `Differs`, their value, ours."""
        settings, recipe = self.paper.table["hyperparameters"], self.page.recipe
        policy, steps = _policy(recipe)
        common = []
        for name, start, ours in (
            ("steps_per_batch", "Optimizer steps", steps),
            ("clip_low", "Clip", _bound(policy, "low")),
            ("clip_high", "Clip", _bound(policy, "high")),
            ("kl", "KL", None if policy is None else getattr(policy.kl, "coefficient", 0.0)),
            ("gamma", "Discount", _discount(recipe)),
        ):
            theirs = _leading(settings[name])
            if theirs is not None and ours is not None:
                common.append((name, start, theirs, float(ours)))
        return common


def papers() -> list[str]:
    """Return the names of all paper files."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


@cache
def _examples(path: Path) -> PaperExamples | None:
    if not path.is_file():
        return None
    name = f"comparisons_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    examples = module.EXAMPLES
    assert isinstance(examples, PaperExamples)
    return examples


def _leading(value: Any) -> float | None:
    """Return the number in a hyperparameter, alone, first or last: `"16: 512 prompts / 32"` and `"512 / 32: 16"`."""
    if isinstance(value, (int, float)):
        return float(value)
    found = re.search(r"(?<=: )\d+(?= \(|$)", value) or re.match(r"\d+(?:\.\d+)?(?=\b(?! to))", value)
    return float(found[0]) if found else None


def _policy(recipe: Recipe) -> tuple[Policy | None, int]:
    """Return the policy's loss in the updates, and the optimizer steps of a batch."""
    for link in recipe.losses():
        if isinstance(link, Train) and isinstance(link.loss, Policy):
            return link.loss, (link.epochs or 1) * (link.minibatches or 1)
    return None, recipe.epochs * recipe.minibatches


def _bound(policy: Policy | None, name: str) -> float | None:
    clip = None if policy is None else policy.clip
    return getattr(clip, name) if isinstance(clip, Clip) else None


def _discount(recipe: Recipe) -> float | None:
    discounts = [link.gamma for link in recipe.chain("advantage") if isinstance(getattr(link, "gamma", None), float)]
    return discounts[0] if discounts else None
