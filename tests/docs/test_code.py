"""The Python of every page runs as written, with long runs shortened."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import DOCS, ROOT, blocks, run

ELSEWHERE = {
    "agents": "tests/project/test_agents_page.py",
    "coming_from/slime": "tests/docs/test_coming_from.py",
    "coming_from/trl": "tests/docs/test_coming_from.py",
    "coming_from/verifiers": "tests/docs/test_coming_from.py",
    "coming_from/verl": "tests/docs/test_coming_from.py",
    "continuous": "tests/project/test_continuous_page.py",
    "engines": "tests/engine/test_vllm_server.py",
    "environments": "tests/project/test_environments_page.py",
    "format": "tests/docs/test_format_page.py",
    "integrations/slime": "tests/integrations/test_pages.py",
    "integrations/trajectories": "tests/integrations/test_pages.py",
    "integrations/trl": "tests/integrations/test_pages.py",
    "integrations/verl": "tests/integrations/test_pages.py",
    "howto/vision": "tests/model/test_images.py",
    "rollouts": "tests/project/test_rollouts_page.py",
}
"""Pages whose code runs in another test, which checks the result or provides what the code needs."""

HERE = (
    "components",
    "concepts",
    "howto/cluster",
    "howto/component",
    "howto/loss",
    "howto/own_model",
    "howto/resume",
    "howto/statistics",
    "howto/teachers",
    "models",
    "stability",
    "start",
    "store",
)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained_on(world: Any, warm_policy: tuple[Any, Any]) -> Callable[[Any], tuple[Any, Any]]:
    """Return value and gradients of a recipe on a batch of the small world."""
    import torch

    import agentrl_core as arl
    from agentrl_core import engine, recipes

    policy, tokenizer = warm_policy
    batch = arl.Collector(engine.Transformers(policy, tokenizer), world, recipes.GRPO)(tasks=4, group_size=4)

    def gradient(recipe: Any) -> tuple[float, Any]:
        policy.zero_grad()
        [update] = recipe.updates(recipe.credit(batch))
        total = 0.0
        for pack in update.pack(max_tokens=2048):
            value = update.loss(pack.run(policy), pack)
            value.backward()
            total += value.item()
        return total, torch.cat([each.grad.flatten() for each in policy.parameters() if each.grad is not None])

    return gradient


def test_the_code_of_every_page_is_run_somewhere() -> None:
    pages = {
        str(path.relative_to(DOCS).with_suffix(""))
        for path in DOCS.rglob("*.md")
        if "```python" in path.read_text(encoding="utf-8")
    }
    assert pages == {*ELSEWHERE, *HERE}
    for page, test in ELSEWHERE.items():
        assert page.rpartition("/")[2] in (ROOT / test).read_text(encoding="utf-8")


def test_the_loop_of_the_first_page() -> None:
    names = run(
        "start",
        cuts={
            "warm_start(world, seed=0)": "warm_start(world, seed=0, steps=3)",
            "iteration, 40": "iteration, 2",
            "=16,": "=2,",
        },
    )
    assert names["store"].iteration == 2
    assert np.isfinite(names["batch"].column("advantage", "draw")).any()
    names["store"].close()


def test_the_tree_of_the_concepts(capsys: pytest.CaptureFixture[str]) -> None:
    import polars as pl

    names = run("concepts")
    batch, imported = names["batch"], names["imported"]
    assert imported.tokens(names["chats"][1]).tolist() == [1, 2, 4]
    assert pl.DataFrame(batch.nodes)["tokens"].list.len().sum() == 8
    assert "advantage" in capsys.readouterr().out
    np.testing.assert_allclose(batch.column("advantage", "draw"), [-0.7071, 0.7071], atol=1e-4)


def test_images_are_read_by_their_hashes() -> None:
    import polars as pl
    from gallery import Gallery, picture, scripted

    import agentrl_core as arl
    from agentrl_core import recipes, scan

    with arl.Store.open("runs/demo") as store:
        collect = arl.Collector(scripted(), Gallery(), recipes.GRPO, store=store, task_pool=4)
        collect.end_iteration(recipes.GRPO.credit(collect(tasks=1, group_size=2)), {})
        names = run("store", {"pl": pl, "scan": scan, "store": store}, only=1)
    known = {picture(number).content for number in range(4)}
    assert known & set(names["images"].values())
    assert all(len(names["images"][row["blobs"]]) == row["size"] for row in names["sizes"].to_dicts())
    assert len(names["sizes"]) >= len(names["images"]) > 2


def test_the_image_of_a_grid(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("minigrid")
    names = run("howto/vision", only=0)
    assert capsys.readouterr().out.startswith("Your mission: go to the red ball\nActions: turn left")
    assert names["view"].content.startswith(b"\x89PNG")


def test_files_are_merged_beside_the_run() -> None:
    from stores import trained

    import agentrl_core as arl

    with arl.Store.open("runs/demo") as store:
        for iteration in range(3):
            trained(store, iteration)
        before = len(store.files("nodes"))
    names = run("store")
    names["merging"].join()
    assert 1 == len(names["store"].files("nodes")) < before
    of_task = names["paths"]["task_id"]
    assert 0 < len(of_task) < len(names["store"].trajectories)
    assert set(of_task) == {"task 1"}
    names["store"].close()


def test_the_howto_of_a_custom_component(capsys: pytest.CaptureFixture[str]) -> None:
    from rollouts import small

    names = run("howto/component")
    bonus = names["ShortBonus"](coefficient=0.2)
    assert "ShortBonus" in capsys.readouterr().out
    # Answers of one and of two tokens, and a wrong one: ranks 0, 2, 1 of lengths 1, 2, 1.
    batch = small([(0, [1]), (0, [2]), (0, [1])], draw_score=[1.0, 1.0, 0.0])
    np.testing.assert_allclose(bonus(batch).column("score", "draw"), [1.2, 1.0 - 0.2, 0.0], atol=1e-6)
    credited = names["recipe"].credit(small([(0, [1]), (0, [2])]))
    np.testing.assert_array_equal(credited.column("score", "draw"), [0.0, 0.0])


def test_the_howto_of_custom_losses(trained_on: Callable[[Any], tuple[float, Any]]) -> None:
    names = run("howto/loss")
    (value, gradient), (again, other) = (trained_on(names[name]) for name in ("recipe", "same"))
    assert gradient.abs().max() > 0.0
    assert value == pytest.approx(again, abs=1e-6)
    np.testing.assert_allclose(gradient.numpy(), other.numpy(), atol=1e-6)
    assert names["mine"].streams


def test_a_pack_runs_on_a_model_with_and_without_its_logits(world: Any, warm_policy: tuple[Any, Any]) -> None:
    import torch

    import agentrl_core as arl
    from agentrl_core import engine, loss, recipes

    model, tokenizer = warm_policy
    recipe = recipes.GRPO
    batch = recipe.credit(arl.Collector(engine.Transformers(model, tokenizer), world, recipe)(tasks=4, group_size=4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    namespace = {"recipe": recipe, "batch": batch, "model": model, "optimizer": optimizer, "loss": loss}
    names = run("models", namespace, only=0)
    names["update"].loss(names["pack"].run(model), names["pack"]).backward()
    expected = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    run("models", names, only=1)
    assert max(float(each.abs().max()) for each in expected) > 0.0
    for parameter, right in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, right, rtol=1e-4, atol=1e-6)
    model.zero_grad()


def test_a_policy_learns_from_a_teacher(capsys: pytest.CaptureFixture[str]) -> None:
    from hand_made import tiny_model
    from riddles import TOKENIZER

    import agentrl_core as arl

    policy, teacher = (tiny_model(seed=seed, vocab_size=len(TOKENIZER)).eval() for seed in (1, 2))
    forest = arl.Forest()
    for group in range(2):
        forest.add_group(group, f"task {group}")
        for member in range(2):
            trajectory = forest.start(group, member)
            forest.append(trajectory, [1, 2, 3, 4 + group], kind="prompt")
            forest.append(trajectory, [10 + member, 12], kind="action", logprobs=[-1.0, -1.0])
            forest.finish(trajectory, reward=0.0)
    before = [each.detach().clone() for each in policy.parameters()]
    names = run(
        "howto/teachers", {"policy": policy, "teacher": teacher, "tokenizer": TOKENIZER, "batch": forest.freeze()}
    )
    divergence, coverage = map(float, capsys.readouterr().out.split())
    assert divergence > 0.0
    assert 0.0 < coverage < 1.0
    assert any(not one.equal(other) for one, other in zip(before, policy.parameters(), strict=True))
    assert names["batch"].column("teacher_top_ids", "token").shape == (8, 8)
    assert names["update"].draws.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_folder_is_trained_and_its_best_weights_load(warm_policy: tuple[Any, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    policy, tokenizer = warm_policy
    policy.save_pretrained("model")
    tokenizer.save_pretrained("model")
    names = run("howto/own_model")
    best = names["train"]("model", "runs/mine", 2)
    assert 0.0 <= best <= 1.0
    assert list(Path("runs/mine/tensorboard").iterdir())
    if Path("runs/mine/best").exists():
        saved = AutoModelForCausalLM.from_pretrained("runs/mine/best")
        assert any(not torch.equal(*each) for each in zip(saved.parameters(), policy.parameters(), strict=True))
    trained = [name for name, each in names["with_adapter"](policy).named_parameters() if each.requires_grad]
    assert trained
    assert all("lora" in name for name in trained)


def test_ranks_give_weights_to_the_engine_of_rank_0(warm_policy: tuple[Any, Any], tmp_path: Path) -> None:
    import torch
    from torch import distributed

    from agentrl_core import engine

    generate = engine.Transformers(*warm_policy, copy=True)
    place = next(place for place, code in enumerate(blocks("models")) if "send_weights" in code)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        namespace = {"torch": torch, "engine": engine, "generate": generate, "model": warm_policy[0], "iteration": 4}
        run("models", namespace, only=place)
    finally:
        distributed.destroy_process_group()
    assert generate.policy_version == 5


def test_systems_are_compared_over_seeds() -> None:
    names = run("howto/statistics")
    assert names["low"] < names["value"] < names["high"]
    assert names["difference"].pairs == 10


def test_the_howto_of_resuming_a_run() -> None:
    names = run("howto/resume")
    assert names["again"] == 3
    assert {path.name for path in Path("runs/resumed").glob("*.pt")} == {f"weights-{n}.pt" for n in (1, 2, 3)}


@pytest.mark.slow
def test_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    pytest.importorskip("tensorboard")
    from agentrl_core import env, warm_start

    # A cluster of this machine alone, and an engine without a GPU.
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    begin = ray.init
    monkeypatch.setattr(ray, "init", lambda _: begin(num_cpus=2, include_dashboard=False, log_to_driver=False))
    _, tokenizer = warm_start.build(env.ReasoningGym(["lcm"], seed=0), seed=0)
    try:
        names = run(
            "howto/cluster",
            {"tokenizer": tokenizer},
            {
                'engine.Vllm("model"), options={"num_gpus": 1}': 'engine.Scripted(tokenizer, lambda tokens: "12")',
                "processes=64": "processes=2",
            },
        )
        assert names["batch"].num_groups == 8
        batch = names["collector"](tasks=2, group_size=2)
        assert batch.num_draws == 4
        names["collector"].close()
        names["generate"].close()
    finally:
        ray.shutdown()


@pytest.mark.filterwarnings("ignore:.*GroupRelative.*")
def test_the_loops_of_the_components(world: Any, warm_policy: tuple[Any, Any]) -> None:
    import torch

    import agentrl_core as arl
    from agentrl_core import advantage, engine, loss, recipes

    policy, tokenizer = warm_policy
    critic = copy.deepcopy(policy)
    critic.value_head = torch.nn.Linear(policy.config.hidden_size, 1)
    batch = arl.Collector(engine.Transformers(policy, tokenizer), world, recipes.GRPO)(tasks=2, group_size=2)
    optimizer = torch.optim.SGD([*policy.parameters(), *critic.parameters()], lr=1e-3)
    before = copy.deepcopy(policy.state_dict())
    trained = {"policy": (policy, optimizer), "critic": (critic, optimizer)}
    names = {"recipes": recipes, "advantage": advantage, "loss": loss, "policy": policy, "trained": trained}
    recipe = recipes.GRPO.replace(advantage=advantage.Gae())
    batch = arl.annotate(arl.annotate(batch, "value", critic), "old_value", critic)
    assert len(blocks("components")) == 3
    namespace = run("components", {**names, "batch": recipe.credit(batch)}, only=0)
    assert [each.model for each in namespace["recipe"].updates(recipe.credit(batch))] == ["critic", "critic", "policy"]
    once = copy.deepcopy(policy.state_dict())
    assert any(not torch.equal(before[name], value) for name, value in once.items())
    batch = recipes.GRPO.credit(batch).with_columns("draw", advantage=np.linspace(-1.0, 1.0, batch.num_draws))
    run("components", {**names, "recipe": recipes.GRPO, "optimizer": optimizer, "batch": batch}, only=1)
    assert any(not torch.equal(once[name], value) for name, value in policy.state_dict().items())
    losses = run("components", {**names, "recipe": recipes.GRPO, "optimizer": optimizer, "batch": batch}, only=2)
    assert np.isfinite(losses["batch"].column("loss", "draw")).all()


def test_an_old_run_opens(capsys: pytest.CaptureFixture[str]) -> None:
    from stores import trained

    import agentrl_core as arl

    with arl.Store.open("runs/old") as store:
        trained(store, 0)
    names = run("stability")
    assert capsys.readouterr().out == "[]\n"
    assert names["batch"].num_draws > 0


def test_every_code_block_is_closed_before_the_next() -> None:
    checked = 0
    for path in [*DOCS.rglob("*.md"), *ROOT.glob("*.md")]:
        fences = re.findall(r"^```(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(fences) % 2 == 0, f"{path.name} has a block that does not end"
        assert not any(fences[1::2]), f"{path.name} has a block that begins in another"
        checked += len(fences) // 2
    assert checked > 40
