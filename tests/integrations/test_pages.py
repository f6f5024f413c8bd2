"""The pages of docs/integrations: every code block runs, and every option exists in the trainer."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from gallery import picture
from hand_made import tiny_model
from riddles import TOKENIZER
from small_world import SmallWorld
from templates import TEMPLATES, bytes_tokenizer

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.env.message_images import data_url
from agentrl_core.exceptions import InvalidInputError

PAGES = Path(__file__).resolve().parents[2] / "docs" / "integrations"


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.*?)```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert found
    return found


def test_every_page_is_tested_here() -> None:
    assert {page.stem for page in PAGES.iterdir()} == {"slime", "trajectories", "trl", "verl"}


def test_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chats = [
        {"messages": [{"role": "user", "content": "1 + 2"}, {"role": "assistant", "content": answer}], "reward": reward}
        for answer, reward in (("3", 1.0), ("4", 0.0))
    ]
    Path("chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    shared = {"conversations": [{"from": "human", "value": "1 + 2"}, {"from": "gpt", "value": "3"}]}
    Path("conversations.jsonl").write_text(json.dumps(shared), encoding="utf-8")
    code, reading, seeing = blocks("trajectories", "python")
    with arl.Store.open(tmp_path / "run") as store:
        names: dict[str, Any] = {"tokenizer": TOKENIZER, "store": store}
        exec(code, names)
        assert store.nodes is not None
    again = [json.loads(line) for line in Path("again.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [chat["messages"] for chat in again] == [chat["messages"] for chat in chats]
    assert len(names["trajectories"]) == len(names["traces"]) == 2
    table = (PAGES / "trajectories.md").read_text(encoding="utf-8")
    from agentrl_core.integrations import trajectories

    assert set(re.findall(r"`((?:from|to)_\w+)\(", table)) == set(trajectories.__all__) - {"read"}
    exec(reading, names)
    assert (names["batch"].num_draws, names["right"]) == (1, chats[:1])
    part = {"type": "image_url", "image_url": {"url": data_url(picture(1).content)}}
    names["chats_with_images"] = [{"messages": [{"role": "user", "content": [part]}, chats[0]["messages"][1]]}]
    names["processor"] = bytes_tokenizer(*TEMPLATES["seeing"])
    exec(seeing, names)
    assert names["seen"].blob(picture(1).sha256) == picture(1).content
    formats = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    with pytest.raises(InvalidInputError, match="give one of " + ", ".join(sorted(formats - {"format"}))):
        list(trajectories.read([], "none"))


def test_slime() -> None:
    names: dict[str, Any] = {}
    (code,) = blocks("slime", "python")
    exec(code, names)
    (options,) = blocks("slime", "bash")
    words = shlex.split(options)
    paths = [word.removeprefix("my_run.") for word in words if word.startswith("my_run.")]
    assert [names[path].__name__ for path in paths] == paths
    assert len(paths) == 3
    slime = pytest.importorskip("slime", reason="slime is installed by hand")
    known = (Path(slime.__path__[0]) / "utils" / "arguments.py").read_text(encoding="utf-8")
    for option in (*words, *re.findall(r"`(--[a-z-]+)`", (PAGES / "slime.md").read_text(encoding="utf-8"))):
        assert not option.startswith("--") or f'"{option}"' in known


def test_verl() -> None:
    verl = pytest.importorskip("verl", reason="verl is installed by `make test`")
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
    from omegaconf import OmegaConf
    from verl_rows import data

    plain_code, conversion = blocks("verl", "python")
    names: dict[str, Any] = {}
    exec(plain_code, names)
    assert "agentrl_mine" in core_algos.ADV_ESTIMATOR_REGISTRY
    assert "agentrl_mine" in core_algos.POLICY_LOSS_REGISTRY
    names["data"] = data(0)
    exec(conversion, names)
    assert names["data"].batch["advantages"].abs().max() > 0.1
    assert names["data"].batch["advantages"].shape == names["data"].batch["responses"].shape

    names["verl"].register_all()
    config = OmegaConf.load(Path(verl.__file__).parent / "trainer" / "config" / "_generated_ppo_trainer.yaml")
    checked = 0
    for command in blocks("verl", "bash"):
        for word in shlex.split(command.replace("\\\n", " ")):
            key, _, value = word.partition("=")
            if "." not in key or not value:
                continue
            assert OmegaConf.select(config, key, default="missing") != "missing", key
            registry = {
                "adv_estimator": core_algos.ADV_ESTIMATOR_REGISTRY,
                "loss_mode": core_algos.POLICY_LOSS_REGISTRY,
            }
            assert value in registry.get(key.rpartition(".")[2], [value]), word
            checked += 1
    assert checked == 5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_trl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trl = pytest.importorskip("trl", reason="TRL is installed by `make test`")
    from datasets import Dataset

    world = SmallWorld()
    with arl.Store.open(tmp_path / "run") as store:
        names: dict[str, Any] = {
            "model": tiny_model(dtype=torch.float32, vocab_size=len(TOKENIZER)),
            "tokenizer": TOKENIZER,
            "dataset": Dataset.from_dict({"prompt": ["ab", "cd"]}),
            "reward": lambda completion_ids, **_: [float(ids[0] % 3) for ids in completion_ids],
            "generate": world,
            "world": world,
            "recipe": recipes.GRPO,
            "store": store,
            "args": trl.GRPOConfig(
                output_dir=str(tmp_path / "out"),
                per_device_train_batch_size=4,
                num_generations=4,
                max_completion_length=4,
                max_steps=1,
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                report_to=[],
                save_strategy="no",
                disable_tqdm=True,
            ),
        }
        for place, code in enumerate(blocks("trl", "python")):
            exec(code, names)
            if place < 2:
                assert names["trainer"].state.global_step == 1
        assert store.iteration == 1
    assert names["worker"].rollout_buffer.empty()
