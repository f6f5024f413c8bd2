"""Inspecting another person's run or recipe imports no module that it names."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import Collector, Store, recipes
from agentrl_core.cli import main
from agentrl_core.component.component import only_own_components
from agentrl_core.component.toml import toml_lines
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.view import Page

MODULE = "named_by_a_stranger"
SOURCE = """
from dataclasses import dataclass
from typing import ClassVar
from agentrl_core.component import BatchComponent, draw
from agentrl_core.schedule import PID

@dataclass(frozen=True)
class Thing(BatchComponent):
    phase: ClassVar[str] = "advantage"
    makes: ClassVar = (draw("advantage"),)
    by: float = 1.0

    def __call__(self, batch):
        return batch.with_columns("draw", advantage=batch.column("score", "draw") * self.by)

@dataclass(frozen=True)
class Control(PID):
    pass
"""


def changed(**phases: Any) -> dict[str, Any]:
    return {**recipes.GRPO.to_dict(), **phases}


def inside(table: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return a copy of a table with another value at a path."""
    copy = json.loads(json.dumps(table))
    *outer, last = path.split(".")
    here = copy
    for name in outer:
        here = here[name]
    here[last] = value
    return copy


THING = {"component": f"{MODULE}:Thing", "by": 2.0}
CONTROL = {"component": f"{MODULE}:Control", "metric": "score"}
NAMING = {
    "a component": changed(advantage=THING),
    "a link of a chain": changed(advantage=[recipes.GRPO.to_dict()["advantage"], THING]),
    "every phase": changed(select=THING, rollout=THING, reward=THING, admit=THING, weight=THING, replay=[THING, THING]),
    "an option": changed(loss={"component": "Policy", "clip": {"component": f"{MODULE}:Thing"}}),
    "a controller": changed(loss={"component": "Policy", "entropy": CONTROL}),
    "what a choice is by": changed(
        advantage={
            "component": "agentrl_core.schedule:Choice",
            "of": [{"component": "GroupRelative"}, {"component": "TrackedBaseline"}],
            "by": CONTROL,
        }
    ),
    "what a choice has": changed(
        advantage={
            "component": "agentrl_core.schedule:Choice",
            "of": [{"component": "GroupRelative"}, THING],
            "by": {"start": 0.0, "end": 1.0, "iterations": 2},
        }
    ),
    "a function of the loss": changed(loss={"component": "Function", "path": f"{MODULE}:cloning"}),
    "a part of a module": changed(advantage={"component": f"{MODULE}.inside:Thing"}),
    "a program of the package": changed(advantage={"component": "agentrl_core.__main__:main"}),
    "an installed package": changed(advantage={"component": "this:Zen"}),
    "a relative module": changed(advantage={"component": ".relative:Thing"}),
    "no module": changed(advantage={"component": ":Thing"}),
}


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], bool]]:
    """Make a module beside the run; return whether it, or another one named above, was imported."""
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(folder)
    named = (MODULE, "this", "agentrl_core.__main__")
    yield lambda: any(name in sys.modules for name in named)
    for name in named:
        sys.modules.pop(name, None)


def run_with(path: Path, table: dict[str, Any]) -> None:
    """Make a run of one iteration with this recipe."""
    forest = arl.Forest()
    forest.add_group(0, "a task")
    for member in range(2):
        here = forest.start(0, member)
        forest.append(here, [1, 2], kind="prompt")
        forest.append(here, [3, 4], kind="action", logprobs=[-0.5, -0.5])
        forest.step(here)
        forest.finish(here, reward=float(member))
    with Store.open(path) as store:
        batch = recipes.GRPO.credit(store.rebase(forest.freeze()))
        store.append(batch, iteration=0)
        store.close_iteration(batch, {"run": {"recipe": table}, "metrics": {"score": 0.5}})


@pytest.mark.parametrize("naming", NAMING)
def test_the_page_of_a_run(naming: str, tmp_path: Path, stranger: Callable[[], bool]) -> None:
    run_with(tmp_path / "run", NAMING[naming])
    with Store.open(tmp_path / "run", read_only=True) as store:
        pages = [Page.of(store).html]
    assert main(["view", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]) == 0
    pages.append((tmp_path / "page.html").read_text())
    assert not stranger()
    for page in pages:
        about = json.loads(page.partition('id="about">')[2].partition("</script>")[0])
        assert [each["name"] for each in about["recipes"]] == ["grpo"]
        links = about["recipes"][0]["phases"]["advantage"]
        chain = NAMING[naming]["advantage"]
        names = [link["component"] for link in (chain if isinstance(chain, list) else [chain])]
        assert [link["component"] for link in links] == names, "other names are shown as text"
        assert [bool(link["purpose"]) for link in links] == [
            name in ("GroupRelative", "agentrl_core.schedule:Choice") for name in names
        ]


@pytest.mark.parametrize("naming", NAMING)
def test_the_page_of_a_recipe(
    naming: str, tmp_path: Path, stranger: Callable[[], bool], capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(toml_lines(NAMING[naming])))
    assert main(["recipes", "show", str(file)]) == 0
    output = capsys.readouterr().out
    assert "outside of agentrl_core" in output
    assert main(["recipes", "show", str(file), "--json"]) == 0
    page = json.loads(capsys.readouterr().out)
    assert page["others"]
    foreign = [phase for phase in ("advantage", "loss", "rollout") if NAMING[naming][phase] != changed()[phase]]
    assert foreign
    assert all(page["recipe"][phase] == NAMING[naming][phase] for phase in foreign[:1] if naming != "a link of a chain")
    assert main(["recipes", "diff", "grpo", str(file)]) == 0
    assert foreign[0] in capsys.readouterr().out
    assert not stranger()


def test_resuming_with_another_recipe_does_not_import_the_old_one(tmp_path: Path, stranger: Callable[[], bool]) -> None:
    """Controllers are compared by name, without importing the one that the run names."""
    with Store.open(tmp_path / "run") as store:
        mine = Recipe.from_dict(NAMING["a component"])
        assert stranger(), "to train by it imports it"
        world = SmallWorld()
        collect = Collector(world, world, mine, store=store, task_pool=4)
        collect.end_iteration(mine.credit(collect(tasks=2, group_size=2)), {})
    del sys.modules[MODULE]
    with Store.open(tmp_path / "run") as store:
        world = SmallWorld()
        collect = Collector(world, world, recipes.GRPO, store=store, task_pool=4, allow_changes=True)
        assert collect.iteration == 1
        assert not stranger()


@pytest.mark.parametrize("naming", NAMING)
def test_names_of_other_packages_are_refused_where_recipes_are_shown(naming: str, stranger: Callable[[], bool]) -> None:
    with only_own_components(), pytest.raises(RecipeError, match="is not part of agentrl_core"):
        Recipe.from_dict(NAMING[naming])
    assert not stranger()


def test_every_recipe_of_the_package_is_read_without_other_modules() -> None:
    names = recipes.names()
    assert names
    with only_own_components():
        assert all(Recipe.from_dict(recipes.get(name).to_dict()) == recipes.get(name) for name in names)
