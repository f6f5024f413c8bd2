"""Worked examples of a paper file, computed by its recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from arithmetic import Value
from case_files import Case, run
from paper_files import FOLDER, Example, Paper

from agentrl_core.recipe import Recipe

Found = dict[str, Value]
Adapter = Callable[[Example], Found]


class PaperExamples:
    """The worked examples of one paper file, and the functions that compute them by the recipe.

    Args:
        system: name of the file in tests/recipes/papers.
    """

    def __init__(self, system: str) -> None:
        self._examples = {example.name: example for example in Paper.read(FOLDER / f"{system}.toml").examples}
        self._adapters: dict[str, Adapter] = {}

    def by(self, name: str) -> Callable[[Adapter], Adapter]:
        """Register the function that computes an example: it returns numbers by their names in `expect`."""
        if name not in self._examples:
            raise KeyError(f"{name!r} is none of the examples {sorted(self._examples)}")

        def register(adapter: Adapter) -> Adapter:
            self._adapters[name] = adapter
            return adapter

        return register

    @property
    def all_names(self) -> list[str]:
        """Names of all examples of the file."""
        return sorted(self._examples)

    @property
    def equations(self) -> set[str]:
        """Numbers of the equations that a computed example uses."""
        return {number for name in self._adapters for number in self._examples[name].equations}

    @property
    def names(self) -> list[str]:
        """Names of the examples that are computed."""
        return sorted(self._adapters)

    def example(self, name: str) -> Example:
        """Return an example of the file."""
        return self._examples[name]

    def check(self, name: str) -> None:
        """Compare what the recipe computes with what the paper file expects."""
        example = self._examples[name]
        result = self._adapters[name](example)
        assert result
        for key, value in result.items():
            np.testing.assert_allclose(
                np.ravel(value), np.ravel(example.expect[key]), rtol=1e-5, atol=1e-6, err_msg=key
            )


def computed(recipe: Recipe, names: Sequence[str], **iteration: Any) -> Mapping[str, Value]:
    """Numbers of one iteration, by the names that the cases of recipes have."""
    case = Case("", recipe, [{**iteration, "expect": dict.fromkeys(names, 0)}], {}, {})
    return run(case, recipe, "sequence", 0)[0]


def answers(lengths: Sequence[int], rewards: Sequence[float], **more: Any) -> list[dict[str, Any]]:
    """Return one-step members of a group."""
    paths = [f"1 | 3*{length}" for length in lengths]
    return [{"path": path, "reward": reward, **more} for path, reward in zip(paths, rewards, strict=True)]
