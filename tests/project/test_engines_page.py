"""The trainer of docs/engines.md runs as it is written, beside a real server; its tables name what there is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from agentrl_core import engine

PAGE = Path(__file__).parents[2] / "docs" / "engines.md"


def block(language: str, index: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)[index]


def test_the_tables_name_every_engine_and_every_cause() -> None:
    pytest.importorskip("transformers")
    from agentrl_core.engine.diagnosis import Cause

    text = PAGE.read_text()
    named = set(re.findall(r"^\| `([A-Z][a-zA-Z]+)\(", text, re.MULTILINE))
    engines = {name for name in engine.__all__ if hasattr(getattr(engine, name), "generate")} - {"Engine"}
    assert named == engines
    assert len(named) >= 5
    causes = set(re.findall(r"^\| `([a-z]+)` \|", text, re.MULTILINE))
    assert causes == set(get_args(Cause)) - {"none"}


def test_the_servers_are_started_with_what_the_tests_start_them_with() -> None:
    from vllm_server import ARGUMENTS

    for index in range(2):
        command = block("sh", index)
        for word in ARGUMENTS:
            assert word in command
        assert "VLLM_SERVER_DEV_MODE=1" in command


@pytest.mark.slow
@pytest.mark.vllm
def test_the_trainer_runs_beside_a_server(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    import torch
    from hand_made import tiny_model
    from vllm_server import ARGUMENTS, serving

    from agentrl_core import Store, env, warm_start
    from agentrl_core.integrations.polars import scan

    tokenizer = warm_start.build(env.ReasoningGym(["chain_sum", "lcm"], held_out=8), seed=0)[1]
    shape = {"hidden_size": 64, "head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 256}
    model = tiny_model("qwen3", torch.float32, vocab_size=len(tokenizer), tie_word_embeddings=True, **shape)
    model.save_pretrained(tmp_path / "policy")
    tokenizer.save_pretrained(tmp_path / "policy")
    (tmp_path / "weights").mkdir()
    (tmp_path / "trainer.py").write_text(block("python"))
    with serving(tmp_path / "policy", tmp_path / "log", *ARGUMENTS) as running:
        done = subprocess.run(
            [sys.executable, "trainer.py", "policy", "weights", "runs/served", running.url],
            cwd=tmp_path,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["version-3"]
    with Store.open(tmp_path / "runs" / "served", read_only=True) as store:
        assert store.iteration == 3
        assert not store.verify()
        tables = scan(store)
        nodes = tables.nodes.select("group_id", "policy_version").drop_nulls()
        of_group = tables.trajectories.select("group_id", "iteration").unique()
        rows = nodes.join(of_group, on="group_id").select("iteration", "policy_version").unique().collect()
    sampled = set(rows.iter_rows())
    assert {iteration for iteration, _ in sampled} == {0, 1, 2}
    assert all(iteration - 1 <= version <= iteration for iteration, version in sampled)
    assert {version for _, version in sampled} >= {0, 1}
