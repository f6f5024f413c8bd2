"""Every case in `cases/`: the recipe gives its numbers, and each option and link of the recipe changes one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from arithmetic import number
from case_files import COLLECTED, FOLDER, MUTATED, Case, agree, mutants, run

from agentrl_core.recipe import Recipe

PATHS = sorted(FOLDER.glob("*.toml"))
CASES = [Case.read(path) for path in PATHS]
OF_RECIPE = {case.recipe.name: [each for each in CASES if each.recipe.name == case.recipe.name] for case in CASES}


def test_there_are_cases() -> None:
    assert len(CASES) >= 10
    for case in CASES:
        assert case.name.startswith(case.recipe.name), "a case is named after its recipe"
        assert all(case.expected), "every iteration expects something"


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("layout", ["sequence", "tree"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_numbers_are_those_of_the_formula(case: Case, layout: str, seed: int) -> None:
    assert agree(run(case, case.recipe, layout, seed), case.expected) == ""


def changes_a_number(case: Case, mutant: Callable[[], Recipe]) -> bool:
    """Return whether a modified recipe gives other numbers, or raises."""
    try:
        numbers = run(case, mutant(), "sequence", 0)
    except Exception:  # noqa: BLE001 - an entry that cannot run counts as different, too
        return True
    return agree(numbers, case.expected) != ""


@pytest.mark.parametrize("name", sorted(OF_RECIPE))
def test_every_option_and_link_matters(name: str) -> None:
    noticed: dict[str, bool] = {}
    for case in OF_RECIPE[name]:
        for description, mutant in mutants(case.recipe, (*COLLECTED, *MUTATED) if case.pool else MUTATED):
            noticed[description] = noticed.get(description, False) or changes_a_number(case, mutant)
    idle = {place for case in OF_RECIPE[name] for place in case.idle}
    unnoticed = {description for description in noticed if not noticed[description]}
    excused = {description for description in noticed if description.split(" = ")[0] in idle}
    assert unnoticed <= excused, f"no number of the cases of {name} changes with: {unnoticed - excused}"
    assert excused <= unnoticed, f"the cases of {name} say that nothing changes with: {excused - unnoticed}"
    assert len(excused) == len(idle), f"the cases of {name} excuse what the recipe does not set: {idle}"


def test_a_number_that_differs_is_reported_with_its_iteration() -> None:
    case = CASES[0]
    expected = [{name: values + 0.5 for name, values in case.expected[0].items()}, *case.expected[1:]]
    assert "iteration 0" in agree(run(case, case.recipe, "sequence", 0), expected)


def test_arithmetic() -> None:
    assert number("3/2 - 2 ** -1") == 1.0
    assert number("sqrt(max(4, 1)) * exp(log(2))") == pytest.approx(4.0)
    assert math.isnan(number("nan"))
    for wrong in ("__import__('os')", "x", "'a' * 3", "[1]"):
        with pytest.raises(ValueError, match="is no arithmetic"):
            number(wrong)
