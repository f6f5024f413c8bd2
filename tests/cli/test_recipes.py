"""`agentrl recipes`: list, show and compare."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl_core import recipes
from agentrl_core.cli import main
from agentrl_core.cli._recipe_page import RecipePage, differences
from agentrl_core.exceptions import RecipeError
from agentrl_core.loss import Clip, Policy


@pytest.fixture
def output_of(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: object, status: int = 0) -> str:
        assert main(["recipes", *map(str, arguments)]) == status
        captured = capsys.readouterr()
        return captured.out if status == 0 else captured.err

    return call


def listed(printed: str) -> list[str]:
    return [line.split()[0] for line in printed.splitlines()[1:-1]]


def test_the_list_has_all(output_of: Callable[..., str]) -> None:
    printed = output_of()
    assert listed(printed) == recipes.names()
    assert f"{len(recipes.names())} of {len(recipes.names())} recipes" in printed


@pytest.mark.parametrize("columns", [60, 100])
@pytest.mark.parametrize("filters", [(), ("--phase", "replay"), ("--facts",)])
def test_a_terminal_shows_the_purposes(
    output_of: Callable[..., str], monkeypatch: pytest.MonkeyPatch, columns: int, filters: tuple[str, ...]
) -> None:
    whole = output_of(*filters)
    monkeypatch.setenv("COLUMNS", str(columns))
    printed = output_of(*filters)
    assert max(map(len, printed.splitlines())) <= columns
    assert printed.split()[:2] == ["recipe", "purpose"]
    purpose = RecipePage.of("arpo_gui").purpose
    assert set(purpose.partition(" (")[0].split()) <= set(printed.split())
    assert {line.split()[0] for line in printed.splitlines()} >= set(listed(whole))


def test_the_list_is_filtered_by_phase_needs_and_facts(output_of: Callable[..., str]) -> None:
    replayed = listed(output_of("--phase", "replay"))
    assert replayed == [name for name in recipes.names() if recipes.get(name).replay is not None]
    assert "arpo_gui" in replayed
    assert "ppo" in listed(output_of("--needs-critic"))
    assert output_of("--needs-critic") == output_of("--needs", "critic")
    assert "grpo" not in listed(output_of("--needs", "reference"))
    assert {"dpo", "ppo"} & set(listed(output_of("--needs", "reference"))) == {"dpo"}
    assert "flawed" in next(line for line in output_of("--facts").splitlines() if line.startswith("fapo "))
    assert "grpo" not in listed(output_of("--facts"))
    both = listed(output_of("--phase", "rollout", "--needs", "reference"))
    assert set(both) == set(listed(output_of("--phase", "rollout"))) & set(listed(output_of("--needs", "reference")))
    assert both


def test_json_is_the_same(output_of: Callable[..., str]) -> None:
    rows: list[dict[str, Any]] = json.loads(output_of("--phase", "replay", "--json"))
    assert [row["name"] for row in rows] == listed(output_of("--phase", "replay"))
    [arpo_gui] = [row for row in rows if row["name"] == "arpo_gui"]
    assert {"name": "reward.format", "level": "draw"} in arpo_gui["facts"]
    description = json.loads(output_of("show", "ppo", "--json"))
    assert description["recipe"] == json.loads(json.dumps(recipes.PPO.to_dict()))
    assert description["trained"] == ["critic", "policy"]


def test_a_page_has_everything(output_of: Callable[..., str]) -> None:
    printed = output_of("show", "arpo")
    for part in ("arXiv:2507.19849", "Pr(copy)", "Place of a branch", "EntropyBranching", "models: policy"):
        assert part in printed
    assert recipes.ARPO.to_toml().strip() in printed


def test_incomplete_lists_the_omissions_of_recipes(output_of: Callable[..., str]) -> None:
    printed = output_of("--incomplete")
    rows = [line for line in printed.splitlines() if line.startswith("rloo ")]
    assert rows
    assert "N1, N2, KL in the reward" in rows[0]
    assert not any(line.startswith("dapo ") for line in printed.splitlines()), "it leaves nothing out"
    assert "recipes that were compared with their source leave something out" in printed
    rows = json.loads(output_of("--incomplete", "--json"))
    assert {"N1, N2, KL in the reward"} == next(row for row in rows if row["name"] == "rloo")["left_out"].keys()


def test_sections_of_a_page() -> None:
    text = """A method.

Some prose.

Equations:
    Read: the paper.

    - 1 and C2, ratio: `Ratio`, over
      two lines.
    - 3, reward: left out: it belongs to the environment.

Differs:
    - Steps: 2 there, 1 here.
    - Warm start: left out, it comes before.
"""
    page = RecipePage(recipes.GRPO, text)
    assert page.prose == "Some prose."
    assert [(each.numbers, each.name, each.text) for each in page.equations] == [
        (("1", "C2"), "ratio", "`Ratio`, over two lines."),
        (("3",), "reward", "left out: it belongs to the environment."),
    ]
    assert page.left_out == (("3, reward", "it belongs to the environment."), ("Warm start", "it comes before."))
    assert page.differs.startswith("- Steps: 2 there")
    with pytest.raises(RecipeError, match="is not `- NUMBER, name: text`"):
        _ = RecipePage(recipes.GRPO, text.replace("- 3, reward:", "- reward:")).equations


def test_two_recipes_are_compared(output_of: Callable[..., str], tmp_path: Path) -> None:
    printed = output_of("diff", "grpo", "dapo")
    assert ["loss.clip.high", "0.2", "0.28"] in [line.split() for line in printed.splitlines()]
    assert "reward[0]" not in printed, "the first link of a chain is compared with the component alone"
    mine = tmp_path / "mine.toml"
    mine.write_text(recipes.GRPO.replace(name="mine", epochs=3).to_toml())
    assert [line.split() for line in output_of("diff", "grpo", mine).splitlines()] == [
        ["place", "grpo", "mine"],
        ["epochs", "1", "3"],
    ]
    assert output_of("diff", "grpo", "grpo") == "grpo and grpo are equal\n"
    assert json.loads(output_of("diff", "grpo", mine, "--json")) == [{"place": "epochs", "grpo": "1", "mine": "3"}]
    assert differences(RecipePage(recipes.GRPO), RecipePage(recipes.GRPO.replace(minibatches=2))) == [
        ("minibatches", "1", "2")
    ]


def test_a_user_s_file_has_a_page(output_of: Callable[..., str], tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(recipes.FAPO.replace(name="mine").to_toml())
    assert "facts of the environment: flawed (draw)" in output_of("show", mine)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "gspoo"), "there is no recipe 'gspoo'; did you mean gspo"),
        (("show",), "recipes show: the number of names is 0; give one recipe or TOML file"),
        (("diff", "grpo"), "recipes diff: the number of names is 1; give two recipes or TOML files"),
        (("--needs", "critics"), "did you mean critic"),
        (("show", "grpo", "--phase", "loss"), "--phase applies to the list only"),
        (("show", "nothing.toml"), "recipe file 'nothing.toml' cannot be read"),
    ],
)
def test_errors_are_one_line_with_a_remedy(
    output_of: Callable[..., str], arguments: tuple[str, ...], message: str
) -> None:
    printed = output_of(*arguments, status=1)
    assert message in printed
    assert len(printed.splitlines()) == 1


def test_the_repr_of_a_component_omits_default_options() -> None:
    assert repr(Policy(clip=Clip(high=0.28))) == "Policy(clip=Clip(high=0.28))"
    assert repr(Policy()) == "Policy()"
    assert RecipePage(recipes.GRPO).purpose == ""
