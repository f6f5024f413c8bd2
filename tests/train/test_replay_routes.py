"""`agentrl train --replay-routes`: train a mixture of experts with the experts that its engine recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from agentrl_core import env, recipes
from agentrl_core.cli import main
from agentrl_core.data.store import Store
from agentrl_core.exceptions import InvalidInputError
from agentrl_core.train import warm_start
from agentrl_core.train.options import TrainOptions

SHORT = ["--rollouts", "8", "--group-size", "4", "--held-out", "4", "--families", "lcm", "--turn-tokens", "6"]
SHORT += ["--task-pool", "64", "--iterations", "2", "--max-turns", "2"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a mixture of experts, and a dense model."""
    dense, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0, held_out=4), seed=0)
    torch.manual_seed(0)
    config: Any = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        head_dim=8,
        intermediate_size=32,
        moe_intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_experts=8,
        num_experts_per_tok=2,
        max_position_embeddings=512,
        initializer_range=0.1,
    )
    paths = {name: tmp_path_factory.mktemp(name) for name in ("experts", "dense")}
    for name, model in (("experts", Qwen3MoeForCausalLM(config)), ("dense", dense)):
        model.save_pretrained(paths[name])
        tokenizer.save_pretrained(paths[name])
    return paths


def train(run: Path, policy: Path, recipe: str, *options: str) -> int:
    return main(["train", "--run", str(run), "--recipe", recipe, "--model", str(policy), *SHORT, *options])


@pytest.mark.parametrize(
    ("recipe", "options"), [("grpo", ["--staleness", "1"]), ("mini_rl", ["--recompute"]), ("ppo", [])]
)
def test_a_mixture_of_experts_is_trained_with_its_recorded_experts(
    recipe: str, options: list[str], folders: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert train(run, folders["experts"], recipe, "--replay-routes", *options) == 0
    with Store.open(run, read_only=True) as store:
        assert store.state["metrics"]["update"]["routed_tokens"] == 1.0
        batch = store.batch(0)
    assert batch.column("routed_experts", "token").shape[1] == 4
    known = batch.column("routed_experts.known", "node_token") != 0
    assert known.sum() >= len(known) - batch.num_draws, "all but the last token of each rollout was read"
    if recipe == "mini_rl":  # old log-probs are computed along the same routes
        old, sampled = (batch.column(f"{name}_logprob", "token") for name in ("proximal", "behaviour"))
        np.testing.assert_allclose(old, sampled, atol=1e-4)


def test_a_recipe_file_can_enable_replay_routes(folders: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(recipes.GRPO.to_toml() + "\n[train]\nreplay_routes = true\niterations = 1\n", encoding="utf-8")
    short = [*SHORT[: SHORT.index("--iterations")], *SHORT[SHORT.index("--iterations") + 2 :]]
    run = tmp_path / "run"
    arguments = ["--recipe", str(path), "--model", str(folders["experts"])]
    assert main(["train", "--run", str(run), *arguments, *short]) == 0
    with Store.open(run, read_only=True) as store:
        assert store.batch(0).has("routed_experts", "node_token")


def test_models_without_experts_are_refused(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(tmp_path / "run", folders["dense"], "grpo", "--replay-routes") != 0
    assert "no expert router is known for" in capsys.readouterr().err
    with pytest.raises(InvalidInputError, match="replay_routes=True, but the small model has no experts; give --model"):
        TrainOptions(replay_routes=True)
