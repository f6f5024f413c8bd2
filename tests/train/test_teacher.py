"""`agentrl train --teacher`: recipes of distillation learn from a local model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import agentrl_core as arl
from agentrl_core import env
from agentrl_core.cli import main
from agentrl_core.data.store import Store
from agentrl_core.model.pack import Pack
from agentrl_core.train import warm_start

SHORT = ["--rollouts", "8", "--group-size", "4", "--held-out", "4", "--families", "lcm", "--turn-tokens", "6"]
SHORT += ["--task-pool", "64", "--learning-rate", "3e-3"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a policy, and a teacher that prefers other tokens."""
    world = env.ReasoningGym(["lcm"], seed=0, held_out=4)
    policy, tokenizer = warm_start.build(world, seed=0)
    teacher = copy.deepcopy(policy)
    with torch.no_grad():
        torch.manual_seed(1)
        teacher.lm_head.weight.add_(0.02 * torch.randn_like(teacher.lm_head.weight))
    other = warm_start.build(env.ReasoningGym(["chain_sum"], seed=0, held_out=4), seed=0)[1]
    paths = {name: tmp_path_factory.mktemp(name) for name in ("policy", "teacher", "stranger")}
    for name, model, words in (
        ("policy", policy, tokenizer),
        ("teacher", teacher, tokenizer),
        ("stranger", teacher, other),
    ):
        model.save_pretrained(paths[name])
        words.save_pretrained(paths[name])
    return paths


def train(recipe: str, run: Path, policy: Path, *options: str) -> int:
    return main(["train", "--run", str(run), "--recipe", recipe, "--model", str(policy), *SHORT, *options])


@pytest.mark.parametrize("recipe", ["minillm", "on_policy_distillation"])
def test_columns_of_a_teacher_train_the_policy_alone(recipe: str, folders: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(recipe, run, folders["policy"], "--teacher", str(folders["teacher"]), "--iterations", "2") == 0
    with Store.open(run, read_only=True) as store:
        teacher_logprobs, sampled = (
            store.batch(1).column(name, "token") for name in ("teacher_logprob", "behaviour_logprob")
        )
    assert np.isfinite(teacher_logprobs[np.isfinite(sampled)]).all()
    assert not np.array_equal(teacher_logprobs, sampled, equal_nan=True)
    (checkpoint,) = (run / "checkpoints").glob("*.pt")
    models = torch.load(checkpoint, weights_only=True)["models"]
    assert models.keys() == {"policy"}
    start = AutoModelForCausalLM.from_pretrained(run / "start").state_dict()
    assert any(not torch.equal(value, start[name]) for name, value in models["policy"].items())


def test_distillation_reduces_the_divergence_from_the_teacher(folders: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ["--teacher", str(folders["teacher"]), "--iterations", "8", "--rollouts", "32", "--turn-tokens", "12"]
    assert train("gkd", run, folders["policy"], *options) == 0
    with Store.open(run, read_only=True) as store:
        batch = store.batch(7)

    def divergence(folder: Path) -> float:
        models: list[Any] = [AutoModelForCausalLM.from_pretrained(each) for each in (folder, folders["teacher"])]

        def of_pack(pack: Pack) -> torch.Tensor:
            value = pack.run(models[0], outputs=("divergence:1.0",), teacher=models[1]).divergence
            assert value is not None
            return value

        return float(np.nanmean(arl.annotate(batch, "kl", of_pack).column("kl", "node_token")))

    assert divergence(run / "last") < 0.85 * divergence(run / "start")


def test_a_teacher_with_another_tokenizer_is_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train("gkd", tmp_path / "run", folders["policy"], "--teacher", str(folders["stranger"])) != 0
    assert "give a teacher with the policy's tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_teacher_needs_a_model(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--recipe", "gkd", "--teacher", str(folders["teacher"])]) != 0
    assert "needs a policy with the same tokenizer; give --model" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("recipe", "options", "message"),
    [
        ("gkd", [], "recipe 'gkd' learns from a teacher; give --teacher"),
        ("grpo", ["--teacher", "policy"], "teacher: recipe 'grpo' does not learn from one; leave --teacher out"),
        ("sdpo", ["--teacher", "policy"], "recipe 'sdpo' modifies model 'teacher'"),
        ("gkd", ["--teacher", "nothing"], "nothing' has no config.json; give the directory of a saved model"),
    ],
)
def test_a_teacher_that_does_not_fit_is_refused_before_anything_is_made(
    recipe: str,
    options: list[str],
    message: str,
    folders: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [str(folders.get(each, tmp_path / each)) if not each.startswith("-") else each for each in options]
    assert train(recipe, tmp_path / "run", folders["policy"], *arguments) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
