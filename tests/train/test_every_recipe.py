"""Recipes that the reference loop runs: one of each kind is run; for all, the loop reports at once if it can."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from agentrl_core import env, loss, recipes, replay
from agentrl_core.cli import main
from agentrl_core.component.component import PHASES
from agentrl_core.component.requirements import required_facts
from agentrl_core.exceptions import AgentRLError
from agentrl_core.recipe import Recipe
from agentrl_core.train import warm_start
from agentrl_core.train.models import check_runs

SHORT = ["--iterations", "2", "--rollouts", "8", "--group-size", "4", "--held-out", "4", "--families", "lcm"]
SHORT += ["--turn-tokens", "6", "--task-pool", "64"]
KINDS = {
    "ppo": [],  # a critic
    "prime": [],  # a reward model, and its reference
    "reinforce_plus_plus": [],  # a reference in the reward
    "areal": [],  # the policy as it was
    "longcat_flash": [],  # recomputed log-probs
    "dpo": ["--group-size", "2"],  # pairs
    "mopps": [],  # tasks are chosen
    "light_if": [],  # an earlier stage
    "remax": [],  # other members
    "rover": [],  # another output of the model
    "gigpo": [],  # steps
    "rloo": [],
    "tree_grpo": [],  # facts of the program
    "ac_flow": [],  # a critic of steps
    "copo": [],  # clusters of answers
    "spear": [],  # calls of tools
    "ppo_ewma": [],  # an average of the policy, updated by a hook
    "fix_po": [],  # passes after the updates
}
REPLAYS = recipes.GRPO.replace(name="replays", replay=replay.Inject(replay.Memory(per_task=2), count=1))
WITH_JUDGE = recipes.PPO.replace(
    name="mine", loss=(loss.Policy(), loss.Train(loss.Value(), "judge")), frozen=("critic",)
)


@pytest.fixture(scope="module")
def demo() -> env.ReasoningGym:
    return env.ReasoningGym(["lcm"], seed=0, held_out=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, demo: env.ReasoningGym) -> Path:
    folder = tmp_path_factory.mktemp("model")
    for part in warm_start.build(demo, seed=0):
        part.save_pretrained(folder)
    return folder


def trained_weights(recipe: str, options: list[str], model: Path, run: Path) -> dict[str, Any]:
    """Return the weights of a successful short run."""
    assert main(["train", "--run", str(run), "--recipe", recipe, "--model", str(model), *SHORT, *options]) == 0
    assert json.loads((run / "summary.json").read_text())["iterations"] == 2
    (checkpoint,) = (run / "checkpoints").glob("*.pt")
    saved: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    return saved


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", KINDS)
def test_a_recipe_of_each_kind_runs(name: str, model: Path, tmp_path: Path) -> None:
    saved = trained_weights(name, KINDS[name], model, tmp_path / "run")
    trained = {link.model for link in recipes.get(name).losses()}
    assert saved["optimizers"].keys() == trained | {"policy"}
    assert saved["models"].keys() >= trained | {"policy"}
    assert "reward_reference" not in saved["models"]  # it equals the start
    assert all(value.isfinite().all() for weights in saved["models"].values() for value in weights.values())


def test_a_user_s_file_runs(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(REPLAYS.to_toml())
    assert trained_weights(str(tmp_path / "mine.toml"), [], model, tmp_path / "run")["models"].keys() == {"policy"}


REFUSED = (
    "learns from a teacher",
    "reads facts",
    "queries model",
    "trains model",
    "modifies model",
    "starts branches",
    "needs a multi-agent environment",
    "selects none",
    "the pool has no column",
    "needs column",
    "needs a value head",
)


def missing(recipe: Recipe, world: env.ReasoningGym) -> list[str]:
    columns = required_facts({phase: recipe.chain(phase) for phase in PHASES})
    return [column.name for column in columns if column.name not in world.facts]


@pytest.mark.parametrize("name", recipes.names())
def test_a_recipe_is_taken_or_refused_in_one_line(name: str, demo: env.ReasoningGym) -> None:
    recipe = recipes.get(name)
    try:
        check_runs(recipe, demo, 2)
    except AgentRLError as error:
        message = str(error)
        assert "\n" not in message
        assert all(fact in message for fact in missing(recipe, demo))
        assert any(word in message for word in REFUSED)
    else:
        assert not missing(recipe, demo)


def test_most_recipes_are_taken(demo: env.ReasoningGym) -> None:
    names = [name for name in recipes.names() if not missing(recipes.get(name), demo)]
    assert set(KINDS) <= set(names)
    assert len(names) > 0.75 * len(recipes.names())


def test_refusals_come_before_anything_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(WITH_JUDGE.to_toml())
    for arguments, message in (
        (["fapo"], "recipe 'fapo' reads facts that these tasks do not have: flawed (available: points, answer, "),
        (["dpo"], "compares exactly two; give --group-size 2"),
        (
            [str(tmp_path / "mine.toml")],
            "recipe 'mine' trains model 'judge', but agentrl train trains only policy, critic",
        ),
        (["vppo"], "recipe 'vppo' needs column 'perturbed_logprob'"),
        (["v0"], "the pool has no column 'prior'"),
        (["ampo"], "recipe 'ampo' queries model 'comprehension' during collection"),
        (["dyna_web"], "recipe 'dyna_web' starts branches in a second environment"),
        (["ema_weights"], "recipe 'ema_weights' modifies model 'average'"),
        (["marft"], "recipe 'marft' needs a multi-agent environment"),
        (["ace_reason"], "recipe 'ace_reason' selects none of these tasks (domains: "),
        (["dots"], "the pool has no column 'embedding'"),
        (["safe"], "recipe 'safe' trains model 'critic' with several values"),
        (["b_coder"], "recipe 'b_coder' needs a value head on the policy"),
        (["arsq"], "recipe 'arsq' modifies model 'target', but agentrl train has only the models policy"),
        (["ver_ipo"], "recipe 'ver_ipo' trains model 'policy' in stage 'pairs' with column"),
    ):
        assert main(["train", "--run", str(tmp_path / "run"), "--recipe", *arguments]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
