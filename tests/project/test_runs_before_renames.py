"""Stores of the build before the renames, and user programs for it, still open, resume and run."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import runs_before_renames
from before_renames import unpack
from pages import ROOT

import agentrl_core as arl
import rename
from agentrl_core import recipes, renames, replay, select
from agentrl_core.cli import main
from agentrl_core.component.component import find_component
from agentrl_core.data.table_codes import CODES
from agentrl_core.exceptions import RecipeError
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.inspo import InstructionSearch
from agentrl_core.renames import Renames
from agentrl_core.train.options import KEPT
from agentrl_core.train.run_files import begun
from renaming.table import Table

RUNS = ("search", "arpo")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return unpack(tmp_path, "runs")


@pytest.fixture
def expected(runs: Path) -> dict[str, Any]:
    return json.loads((runs / "expected.json").read_text(encoding="utf-8"))


# Runs


@pytest.mark.parametrize("name", RUNS)
def test_a_run_opens(runs: Path, expected: dict[str, Any], name: str) -> None:
    with arl.Store.open(runs / name, read_only=True) as store:
        assert store.iteration == expected[name]["iteration"]
        assert store.verify() == []
        for iteration in range(store.iteration):
            batch = store.batch(iteration)
            assert batch.num_draws == 12
            assert np.isfinite(batch.column("score", "draw")).all()
            assert np.isfinite(batch.column("advantage", "token")).any()
        recipe = Recipe.from_dict(store.state["run"]["recipe"])
        assert recipe == {"search": runs_before_renames.search, "arpo": runs_before_renames.arpo}[name]()
        measured = pl.DataFrame(store.metrics)
        metric_names = {renames.table().metric(each) for each in ("said.consumed", "said.age", "collect.draws", "loss")}
        assert metric_names <= set(measured["name"])
        assert arl.scan(store).metrics.collect().sort("iteration", "name").equals(measured.sort("iteration", "name"))


@pytest.mark.parametrize("name", RUNS)
def test_its_open_iteration_is_finished_as_if_nothing_had_happened(
    runs: Path, expected: dict[str, Any], name: str
) -> None:
    go_on = {"search": runs_before_renames.searched, "arpo": runs_before_renames.imitated}[name]
    with arl.Store.open(runs / name) as store:
        iteration = store.iteration
        if name == "search":
            records = [record for record, _ in store.rollout_log(iteration).records()]
            assert len([each for each in records if b"/segment" in each]) > 4
            go_on(store, iteration + 1)
        else:
            assert store.has_batch(iteration)
            go_on(store, iteration + 1, closed=True)
        result = json.loads(json.dumps(runs_before_renames.outcome(store, iteration)))
        names = renames.table()
        assert result["rows"] == expected[name]["rows"]
        assert result["components"] == names.places(expected[name]["components"])
        assert result["metrics"] == names.state({"metrics": expected[name]["metrics"]})["metrics"]
        assert store.verify() == []


def test_recorded_segments_are_not_sampled_again(runs: Path, expected: dict[str, Any]) -> None:
    with arl.Store.open(runs / "search") as store:
        recorded_count = sum(b"/segment" in record for record, _ in store.rollout_log(store.iteration).records())
        collect, world = runs_before_renames.searching(store)
        world.remaining = 10_000
        collect(tasks=3, group_size=4)
        action = CODES["kind"].index("action")
        assert (
            10_000 - world.remaining
            == [row["kind"] for row in expected["search"]["rows"]["nodes"]].count(action) - recorded_count
        )


@pytest.mark.parametrize("command", ["ls", "stats", "show", "verify", "watch", "view", "compare", "export"])
def test_commands_read_the_runs(runs: Path, command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = {
        "show": ["0"],
        "watch": ["--once"],
        "view": ["-o", str(tmp_path / "run.html")],
        "compare": [str(runs / "arpo")],
        "export": ["--to", str(tmp_path / "rows.parquet")],
    }
    assert main([command, str(runs / "search"), *more.get(command, [])]) == 0
    output = capsys.readouterr().out
    assert output or command in ("view", "export")


# Recipes


CORRECTED = ("cory", "rise", "s2pg")
"""Recipes that train a critic too since the file was written."""


def test_recipes_are_read(tmp_path: Path) -> None:
    files = sorted(unpack(tmp_path, "recipes").glob("*.toml"))
    assert len(files) > 90
    for path in files:
        recipe = Recipe.from_toml(path)
        assert recipe.name == path.stem
        assert Recipe.from_toml(recipe.to_toml()) == recipe
        if not path.stem.startswith("parts_") and path.stem not in CORRECTED:
            assert type(recipe.loss) is type(recipes.get(path.stem).loss)


def test_rewritten_recipe_files_are_the_same_recipes(tmp_path: Path) -> None:
    table = Table.of(Renames.read())
    for path in unpack(tmp_path, "recipes").glob("*.toml"):
        rewritten = rename.rewrite(path, table)
        assert rewritten.problems == []
        assert Recipe.from_toml(rewritten.text.decode()) == Recipe.from_toml(path)


def test_a_removed_option_with_another_value_is_one_clear_error(tmp_path: Path) -> None:
    path = unpack(tmp_path, "recipes") / "rl_100.toml"
    text = shortened(path.read_text(encoding="utf-8"), ("margin = 0.0", "margin = 0.1"))
    with pytest.raises(RecipeError, match=r"option 'margin' of component '.*rl_100:Gain' was removed; use fraction"):
        Recipe.from_toml(text)


def test_options_that_were_texts_are_tuples() -> None:
    def read(package: str, **table: Any) -> Any:
        return find_component(f"agentrl_core.{package}", table)

    stages = read("select", component="Stages", by="domain", buckets="math+logic,code", above=0.5)
    assert stages == select.Curriculum("domain", (("math", "logic"), "code"), above=0.5)
    assert read("select", component="Stages", by="hops", buckets="3,8.5") == select.Curriculum("hops", (3, 8.5))
    levels = read("select", component="Stages", by="domain", buckets="1,2+3", above=0.5)
    assert levels == select.Curriculum("domain", ("1", ("2", "3")), above=0.5)
    assert read("select", component="Quota", targets="math=2,code=0.5").targets == (("math", 2.0), ("code", 0.5))
    assert read("select", component="Quota", targets="") == select.Quota()
    assert read("replay", component="Memory", keep="reward, success") == replay.Memory(keep=("reward", "success"))
    inspo = read("rollout", component="agentrl_core.recipes.inspo:Instructed", begin="Think, then act.|Search.")
    assert inspo == InstructionSearch(begin=("Think, then act.", "Search."))
    for each in (stages, inspo):
        assert type(each).from_dict(json.loads(json.dumps(each.to_dict()))) == each
    made = recipes.GRPO.replace(select=select.ComposedSelector(stage=stages, quota=select.Quota((("math", 2),))))
    assert Recipe.from_toml(made.to_toml()) == made


# Made-up names, so that names are renamed whatever the table has

OLD = Renames(
    {
        "modules": {"agentrl_core.component.clock": "agentrl_core.component.schedule"},
        "names": {
            "agentrl_core.select.Jobs": "agentrl_core.select.ComposedSelector",
            "agentrl_core.select.Prior": "agentrl_core.select.Beta",
            "agentrl_core.schedule.Over": "agentrl_core.schedule.Above",
            "agentrl_core.schedule.End": "agentrl_core.schedule.StopTraining",
            "agentrl_core.reward.Noise": "removed: use reward.NoiseReward",
            "agentrl_core.loss.Plain": "agentrl_core.recipes.fix_po.OldDivergence",
        },
        "options": {
            "agentrl_core.select.Jobs.follow": "track",
            "agentrl_core.select.Prior.fade": "decay",
            "agentrl_core.Recipe.events": "hooks",
            "agentrl_core.schedule.End.if_": "when",
            "agentrl_core.Recipe.shared=first": "owner",
            "agentrl_core.Schedule.first": "start",
            "agentrl_core.loss.Policy.cut": "clip",
            "agentrl_core.loss.Clip.bottom": "low",
        },
        "metrics": {"spoken.age": "tokens.staleness", "spoken.": "tokens."},
    }
)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renames, "table", lambda: OLD)


TEXT = """\
name = "mine"
shared = "first"

[select]
component = "Jobs"
[select.follow]
component = "Prior"
fade = 0.5

[loss]
component = "Policy"
[loss.cut]
component = "Clip"
[loss.cut.bottom]
first = 0.1
end = 0.3
iterations = 4

[[events]]
component = "End"
[events.if_]
component = "agentrl_core.schedule:Over"
metric = "spoken.age"
threshold = 2.0
"""


@pytest.mark.usefixtures("old")
def test_old_names_of_a_recipe_are_todays() -> None:
    from agentrl_core import loss, schedule

    recipe = Recipe.from_toml(TEXT)
    assert recipe == Recipe(
        name="mine",
        shared="owner",
        select=select.ComposedSelector(track=select.Beta(decay=0.5)),
        loss=loss.Policy(clip=loss.Clip(arl.Schedule(0.1, 0.3, iterations=4))),
        hooks=(schedule.StopTraining(when=schedule.Above("tokens.staleness", 2.0)),),
    )
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    table = {"component": "Jobs", "follow": {"component": "Prior", "fade": 0.5}}
    assert find_component("agentrl_core.select", table) == recipe.select
    assert select.ComposedSelector.from_dict(table) == recipe.select
    moved = find_component("agentrl_core.loss", {"component": "Plain", "coefficient": 0.5})
    assert type(moved).__module__ == "agentrl_core.recipes.fix_po"


@pytest.mark.usefixtures("old")
def test_a_component_that_was_removed_is_one_clear_error() -> None:
    with pytest.raises(RecipeError, match=r"component 'Noise' was removed; use reward\.NoiseReward"):
        Recipe.from_dict({"name": "mine", "reward": [{"component": "Noise"}]})


@pytest.mark.usefixtures("old")
def test_the_recipe_file_of_a_run_is_read(tmp_path: Path) -> None:
    lines = "".join(f"{name} = 0\n" for name in sorted(KEPT))
    (tmp_path / "recipe.toml").write_text(f"{TEXT}\n[train]\n{lines}")
    start = begun(tmp_path)
    assert start is not None
    assert start[0] == Recipe.from_toml(TEXT)


def test_old_names_of_a_store_are_todays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {
        "metrics": {"loss": 0.5, "spoken": {"age": 1.0, "all": 7}, "spoken.now": 2, "steps": {"loss": [1.0]}},
        "components": {"select[0].Jobs": {"seen": 3}, "loss[0].Policy.cut.low": {"n": 1}, "actions": {"steps": 4}},
        "run": {"recipe": {"name": "mine", "select": {"component": "Jobs"}, "events": []}, "seed": 3},
    }
    with arl.Store.open(tmp_path / "run") as store:
        batch = store.rebase(
            arl.Forest().freeze().with_state({"began": {"select[0].Jobs": {"a": 1}}, "columns": {"score": 1}})
        )
        store.append(batch, iteration=0)
        arrays = {"select[0].Jobs/follow/alpha": np.ones(2), "events/x": np.zeros(1)}
        store.close_iteration(batch, state, arrays)
    monkeypatch.setattr(renames, "table", lambda: OLD)
    with arl.Store.open(tmp_path / "run", read_only=True) as store:
        assert store.state == {
            "metrics": {"loss": 0.5, "tokens": {"staleness": 1.0, "all": 7}, "tokens.now": 2, "steps": {"loss": [1.0]}},
            "components": {
                "select[0].ComposedSelector": {"seen": 3},
                "loss[0].Policy.clip.low": {"n": 1},
                "actions": {"steps": 4},
            },
            "run": {"recipe": {"name": "mine", "select": {"component": "ComposedSelector"}, "hooks": []}, "seed": 3},
        }
        assert sorted(store.arrays) == ["events/x", "select[0].ComposedSelector/follow/alpha"]
        assert store.metrics.column("name") == ["loss", "tokens.staleness", "tokens.all", "tokens.now"]
        tables = arl.scan(store)
        aged = tables.metrics.filter(pl.col("name") == "tokens.staleness").select("value").collect()
        assert aged["value"].to_list() == [1.0]
        known = {"began": {"select[0].ComposedSelector": {"a": 1}}, "columns": {"score": 1}}
        assert store.batch(0).state == known
        assert tables.metrics.filter(pl.col("name") == "spoken.age").collect().is_empty()


# Programs


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return user programs, rewritten by the tool."""
    folder = unpack(tmp_path_factory.mktemp("code"), "user_code")
    assert len([each for each in folder.rglob("*") if each.is_file()]) == 23
    assert rename.main([str(folder)]) == 0
    assert rename.main([str(folder), "--check"]) == 0
    return folder


def blocks(page: Path) -> list[str]:
    found = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    assert found
    return found


def shortened(text: str, *cuts: tuple[str, str]) -> str:
    for long, short in cuts:
        assert text.count(long) == 1, long
        text = text.replace(long, short)
    return text


# After three steps of warm start the model calls no tool, so there are no forks.
@pytest.mark.filterwarnings("ignore:rollout.EntropyBranching forks at tool results")
def test_the_loop_of_the_readme_runs(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop, columns, elsewhere, reading = blocks(code / "README.md")
    names: dict[str, Any] = {}
    cuts = (
        ("collect.iteration, 40", "collect.iteration, 2"),
        ("seed=0)  ", "seed=0, steps=3)"),
        ("tasks=16", "tasks=2"),
    )
    exec(shortened(loop, *cuts), names)
    assert names["store"].iteration == 2
    for each in (columns, elsewhere, reading.replace("runs/demo", "runs/arpo")):
        exec(each, names)
    names["store"].close()


@pytest.mark.parametrize("page", ["concepts", "howto/component", "howto/resume", "rollouts"])
def test_the_code_of_a_page_runs(code: Path, page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code_blocks = blocks(code / "docs" / f"{page}.md")
    text = "\n".join(code_blocks if page != "rollouts" else code_blocks[:1])
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, page, "exec", dont_inherit=True), names)
    result_names = {"concepts": "batch", "howto/component": "ShortBonus", "howto/resume": "again", "rollouts": "batch"}
    assert names[result_names[page]] is not None


@pytest.mark.parametrize("name", ["from_paper_to_recipe", "look_at_a_run", "own_rollout_program"])
def test_a_notebook_runs(code: Path, name: str) -> None:
    notebook = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    if name == "from_paper_to_recipe":  # Dr. GRPO did one optimizer step per batch then, and does eight now
        path = code / "notebooks" / f"{name}.ipynb"
        path.write_text(shortened(path.read_text(), (".updates(batch)", ".replace(minibatches=1).updates(batch)")))
    assert notebook["page"](code / "notebooks" / f"{name}.ipynb").count('<pre class="output">') >= 2


@pytest.mark.filterwarnings("ignore")  # of the framework
def test_the_example_runs(code: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = code / "examples" / "langgraph_calculator.py"
    text = path.read_text(encoding="utf-8")
    assert text.count("context_tokens=256") == 1
    # Tools that the chat template does not render are described in a system message now, which takes more tokens.
    path.write_text(text.replace("context_tokens=256", "context_tokens=1024"), encoding="utf-8")
    example = runpy.run_path(str(path))
    result = example["learned"](0, iterations=1, rollouts=16, steps=40, held_out=3)
    assert len(result["success"]) == 1
    assert "seed 0 iteration 0 success" in capsys.readouterr().out
