"""The main job, in short."""

import json
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import polars as pl
import pytest
import torch
from hand_made import tiny_model
from quiet import Quiet
from updates import columns, grow

from agentrl_core import Store, engine, env, recipes, warm_start
from agentrl_core.cli import main
from agentrl_core.exceptions import AgentRLError
from agentrl_core.train.calculator_demonstrations import imitate
from agentrl_core.train.loop import train
from agentrl_core.train.models import Models
from agentrl_core.train.options import TrainOptions

SHORT = ["--iterations", "2", "--rollouts", "16", "--group-size", "4", "--warm-start-steps", "5", "--held-out", "16"]


def weights(run, name="start"):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(run / name).state_dict()


# After such a short warm start the model may call no tool: ARPO cannot fork then, and warns.
@pytest.mark.filterwarnings("ignore:rollout.EntropyBranching forks at tool results")
@pytest.mark.parametrize("recipe", ["grpo", "arpo"])
def test_a_run_writes_its_summary_store_and_learning_curve(tmp_path, capsys, recipe):
    run = tmp_path / "run"
    assert main(["train", "--run", str(run), "--recipe", recipe, *SHORT]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["recipe"] == recipe
    assert summary["iterations"] == 2
    assert summary["held_out_tasks"] == 16
    assert 0 <= summary["success_before"] <= 1
    assert 0 <= summary["success_after"] <= 1
    assert set(summary["seconds"]) == {"warm_start", "evaluate", "collect", "update", "store"}
    solved = json.loads((run / "before.json").read_text())
    assert summary["success_before"] == sum(solved) / 16
    gain, low, high = summary["gain"]
    assert gain == pytest.approx(summary["success_after"] - summary["success_before"])
    assert low <= gain <= high
    assert 0 <= summary["solved_with_tool"] <= 1
    with Store.open(run) as store:
        assert 0 <= store.state["metrics"]["update"]["gradient_norm"] < 1e6
    nodes = pl.scan_ipc(run / "nodes" / "*.arrow").filter(pl.col("kind") == 1)
    assert summary["generated_tokens"] == nodes.select(pl.col("tokens").list.len().sum()).collect().item()
    assert (run / "learning_curve.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    printed = capsys.readouterr().out
    lines = printed[printed.index("import polars") :]
    exec(lines, {})
    assert "success" in capsys.readouterr().out
    assert main(["train", "--run", str(run), *SHORT]) == 1
    assert "--resume" in capsys.readouterr().err


def test_the_norm_of_gradients_is_that_before_clipping():
    policy = tiny_model("llama", torch.float32)
    batch = columns(grow(0), 0, per="token")
    expected = []
    for update in recipes.GRPO.updates(batch):
        policy.zero_grad()
        for pack in update.pack(max_tokens=4096):
            update.loss(pack.run(policy), pack).backward()
        expected.append(torch.cat([each.grad.flatten() for each in policy.parameters()]).norm().item())
    policy.zero_grad()
    models = Models(recipes.GRPO, policy, policy, learning_rate=0.0, seed=0)
    metrics = models.step(recipes.GRPO.updates(batch), rate=0.0, gradient_clip=1e-6, max_tokens=4096)
    assert metrics["gradient_norm"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    assert metrics["gradient_norm"] > 1e-3


def test_a_model_of_a_folder_may_begin_with_demonstrations(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "examples")
    world = env.ReasoningGym(["chain_sum"], seed=0, max_turns=2, held_out=8)
    model, tokenizer = warm_start.build(world, seed=0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = {"model": str(tmp_path / "model"), "iterations": 1, "rollouts": 8, "held_out": 8}
    families = {"families": ("chain_sum",), "max_turns": 2}
    train(TrainOptions(run=str(tmp_path / "run"), warm_start_steps=2, **families, **options), recipes.GRPO, Quiet())
    imitate(model, tokenizer, world, seed=0, steps=2)
    shown = weights(tmp_path / "run")
    assert all(torch.equal(shown[name], value) for name, value in model.state_dict().items())
    other = TrainOptions(run=str(tmp_path / "none"), env="largest_number:world", turn_tokens=4, **options)
    train(other, recipes.GRPO, Quiet())
    first = weights(tmp_path / "none")
    assert any(not torch.equal(shown[name], value) for name, value in first.items())
    with pytest.raises(AgentRLError, match="warm_start_steps=1: env='largest_number:world' has no demonstrations"):
        TrainOptions(env="largest_number:world", warm_start_steps=1)
    with pytest.raises(AgentRLError, match="warm_start_steps=-2"):
        TrainOptions(warm_start_steps=-2)


def test_without_a_learning_rate_nothing_changes(tmp_path):
    run = tmp_path / "run"
    assert main(["train", "--run", str(run), "--learning-rate", "0", *SHORT]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["success_after"] == summary["success_before"]
    checkpoint = torch.load(next((run / "checkpoints").glob("*.pt")), weights_only=True)["models"]["policy"]
    start = weights(run)
    assert len(start) > 10
    assert all(torch.equal(checkpoint[name], value) for name, value in start.items())


def test_a_local_model_is_trained_instead(tmp_path, capsys, warm_policy):
    policy, tokenizer = warm_policy
    model = tmp_path / "model"
    policy.save_pretrained(model)
    tokenizer.save_pretrained(model)
    run = tmp_path / "run"
    assert main(["train", "--run", str(run), "--model", str(model), *SHORT, "--warm-start-steps", "0"]) == 0
    start = weights(run)
    assert all(torch.equal(start[name], value) for name, value in policy.state_dict().items())
    checkpoint = torch.load(next((run / "checkpoints").glob("*.pt")), weights_only=True)["models"]["policy"]
    assert not all(torch.equal(checkpoint[name], value) for name, value in start.items())
    capsys.readouterr()
    for wrong, message in (
        (["--model", str(tmp_path / "nothing")], "config.json"),
        (["--device", "cuda"], "no GPU"),
        (["--engine", "magic"], "transformers or vllm"),
        (["--iterations", "0"], "iterations=0"),
    ):
        if wrong == ["--device", "cuda"] and torch.cuda.is_available():
            continue
        assert main(["train", "--run", str(tmp_path / "other"), *wrong]) == 1
        printed = capsys.readouterr().err
        assert message in printed
        assert len(printed.splitlines()) == 1


@pytest.mark.slow
def test_an_adapter_on_a_custom_environment_is_trained_and_resumed(tmp_path, capsys, monkeypatch, warm_policy):
    policy, tokenizer = warm_policy
    policy.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "my_world.py").write_text(
        "from agentrl_core import env\n\ndef sums():\n    return env.ReasoningGym(['chain_sum'], held_out=16)\n"
        "\n\ndef nothing_of_use():\n    return {}\n"
        "\n\nclass Game:\n"
        "    def tasks(self, count, *, split='train', start=0):\n"
        "        return [env.Task(f'{split}/{i}', f'{i}', 'game', i) for i in range(start, start + count)]\n\n"
        "    def reset(self, task, seed):\n        raise AssertionError('never started')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    run = tmp_path / "run"
    options = ["--model", str(tmp_path / "model"), "--env", "my_world:sums", "--lora", "4", "--precision", "bf16"]
    options += ["--recompute", "--schedule", "constant", "--evaluate-every", "1", "--loggers", "tensorboard"]
    options += ["--rollouts", "16", "--group-size", "4", "--held-out", "16"]
    assert main(["train", "--run", str(run), "--iterations", "1", *options]) == 0
    assert main(["train", "--run", str(run), "--iterations", "2", "--resume"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["iterations"] == 2
    assert summary["best_success"] >= 0
    checkpoint = torch.load(next((run / "checkpoints").glob("*.pt")), weights_only=True)["models"]["policy"]
    start = weights(run)
    adapted = {name: value for name, value in checkpoint.items() if "lora_B" in name}
    assert adapted
    assert all(value.abs().max() > 0 for value in adapted.values())
    frozen = {name: value for name, value in checkpoint.items() if "lora" not in name}
    plain = {name.replace("base_model.model.", "").replace(".base_layer", ""): value for name, value in frozen.items()}
    assert all(torch.equal(start[name], value) for name, value in plain.items())
    last = weights(run, "last")  # merged
    assert last.keys() == start.keys()
    assert any(not torch.equal(last[name], value) for name, value in start.items())
    assert weights(run, "best").keys() == start.keys()
    assert len(list((run / "tensorboard").iterdir())) == 2  # a file for each process
    capsys.readouterr()
    for wrong, message in (
        (["--env", "my_world:nothing"], "env='my_world:nothing': module 'my_world' has no attribute 'nothing'"),
        (["--env", "my_world"], "env='my_world'; use reasoning_gym, textworld, or module:function"),
        (["--env", "json:dumps"], "env='json:dumps': missing a required argument"),
        (["--env", "my_world:nothing_of_use"], "returned dict, which has no tasks and no reset; return an environment"),
        (
            ["--env", "my_world:Game", "--model", ""],
            "no demonstrations to warm up a small model with; give --model",
        ),
        (["--lora", "-1"], "lora=-1 is not possible; give at least 0"),
        (["--recipe", "ppo_ewma", "--lora", "2"], "lora: recipe 'ppo_ewma' copies weights between models"),
    ):
        assert main(["train", "--run", str(tmp_path / "other"), "--model", str(tmp_path / "model"), *wrong]) == 1
        printed = capsys.readouterr().err
        assert message in printed
        assert len(printed.splitlines()) == 1


def test_the_learning_rate_follows_the_model(tmp_path, warm_policy):
    warm_policy[0].save_pretrained(tmp_path / "warm")
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "config.json").write_text("{}")
    warm, pretrained = str(tmp_path / "warm"), str(tmp_path / "pretrained")
    assert TrainOptions().highest_rate == 5e-4
    assert TrainOptions(model=warm).highest_rate == (1e-5 if TrainOptions(model=warm).is_pretrained else 5e-4)
    assert TrainOptions(model=pretrained).highest_rate == 1e-5
    assert TrainOptions(model=pretrained, lora=8).highest_rate == 1e-4
    assert TrainOptions(model=pretrained, learning_rate=0.0).highest_rate == 0


def test_a_recipe_file_holds_options(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    options = '[train]\niterations = 1\nrollouts = 8\nheld_out = 8\nwarm_start_steps = 3\nfamilies = ["lcm"]\n'
    file.write_text(recipes.GRPO.replace(name="mine", minibatches=2).to_toml() + options)
    assert main(["train", "--recipe", str(file), "--run", str(tmp_path / "run"), "--iterations", "2"]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["recipe"], summary["iterations"], summary["held_out_tasks"]) == ("mine", 2, 8)
    domains = pl.scan_ipc(tmp_path / "run" / "trajectories" / "*.arrow").select(pl.col("task_id").str.head(3)).collect()
    assert set(domains["task_id"]) == {"lcm"}
    file.write_text("[train]\nspeed = 3\n" + recipes.GRPO.to_toml().replace("name", "nome"))
    assert main(["train", "--recipe", str(file)]) == 1
    assert main(["train", "--recipe", "nothing"]) == 1
    assert "grpo" in capsys.readouterr().err


def test_a_resumed_run_keeps_its_recipe_and_seed(tmp_path, capsys):
    run = tmp_path / "run"
    begin = ["train", "--run", str(run), "--recipe", "rloo", "--seed", "3", *SHORT, "--iterations", "1"]
    assert main(begin) == 0
    assert main(["train", "--run", str(run), "--resume", "--iterations", "2"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["recipe"], summary["seed"], summary["iterations"], summary["held_out_tasks"]) == ("rloo", 3, 2, 16)
    capsys.readouterr()
    for other, message in ((["--seed", "4"], "seed=3, not 4"), (["--recipe", "grpo"], "started with recipe 'rloo'")):
        assert main(["train", "--run", str(run), "--resume", *other]) == 1
        assert message in capsys.readouterr().err


def test_rollouts_run_ahead_of_the_trainer(tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["train", "--run", str(run), *SHORT, "--staleness", "1", "--iterations", "4"]) == 0
    with Store.open(run, read_only=True) as store:
        assert store.iteration == 4
        for iteration in range(4):
            versions = store.batch(iteration).column("policy_version", "token")
            assert len(versions)
            assert iteration - 1 <= versions.min() <= versions.max() <= iteration
    assert json.loads((run / "summary.json").read_text())["iterations"] == 4
    # Iteration 4 was running: its recorded responses are requested again; a warning that one is not fails the test.
    assert main(["train", "--run", str(run), "--resume", "--iterations", "6"]) == 0
    with Store.open(run, read_only=True) as store:
        assert store.iteration == 6
        # The loop's own number and the collector's table are in one file.
        metrics = store.state["metrics"]
        assert metrics["sampled_tokens"] > 0
        assert metrics["tokens"]["generated"] == metrics["tokens"]["consumed"] == metrics["sampled_tokens"]
        tasks = [store.batch(iteration).texts("task_id", "draw") for iteration in range(6)]
    # The concurrent iterations chose from the tasks that the environment returns in one thread.
    world = env.ReasoningGym(["chain_sum", "products", "lcm"], seed=0, held_out=16)
    assert {task for each in tasks for task in each} <= {task.task_id for task in world.tasks(16_384)}
    capsys.readouterr()
    assert main(["train", "--run", str(run), "--resume", "--staleness", "2"]) == 1
    assert "staleness=1, not 2" in capsys.readouterr().err
    assert main(["train", "--run", str(tmp_path / "other"), "--staleness", "-1"]) == 1
    assert "staleness=-1" in capsys.readouterr().err


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_or_error_stops_rollouts_that_run_ahead(tmp_path, monkeypatch, error):
    """A Ctrl-C or an error in the update, while the next iteration is rolled out, closes the engine."""
    underway, closed, step, close = [], [], Models.step, engine.Transformers.close

    def breaks(models, *rest, **options):
        underway.append(running())
        if len(underway) == 2:
            raise error
        return step(models, *rest, **options)

    def closes(generate):
        closed.append(running())
        close(generate)

    monkeypatch.setattr(Models, "step", breaks)
    monkeypatch.setattr(engine.Transformers, "close", closes)
    options = TrainOptions(
        run=str(tmp_path), iterations=4, rollouts=64, group_size=4, warm_start_steps=5, held_out=4, staleness=1
    )
    with pytest.raises(error):
        train(options, recipes.GRPO, Quiet())
    # Iteration 1 ran beside iteration 0; so 2 had only begun.
    assert underway[1] == ["agentrl-iteration-2"]
    assert closed == [[]]


def running():
    """Return the iterations that are running."""
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("agentrl-iteration")]


def test_options_of_a_wrong_type_are_named(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    for line, message in (('iterations = "2"', "iterations='2'"), ("learning_rate = nan", "learning_rate=nan")):
        file.write_text(recipes.GRPO.to_toml() + f"[train]\n{line}\n")
        assert main(["train", "--recipe", str(file), "--run", str(tmp_path / "run")]) == 1
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.full
def test_reinforcement_learning_gains_45_points(tmp_path):
    run = tmp_path / "run"
    # The gain comes in the first ten iterations; the other thirty keep it.
    assert main(["train", "--run", str(run), "--seed", "1", "--iterations", "14"]) == 0
    summary = json.loads((run / "summary.json").read_text())
    assert summary["held_out_tasks"] == 384
    assert 0.2 < summary["success_before"] < 0.45, "after the warm start the model is able but poor"
    assert summary["success_after"] >= summary["success_before"] + 0.45


def closed(run):
    """Return the number of closed iterations; 0 if there are none yet."""
    try:
        with Store.open(run, read_only=True) as store:
            return store.iteration
    except AgentRLError:
        return 0


@pytest.mark.slow
def test_ctrl_c_saves_the_run_and_resume_completes_it(tmp_path):
    run = tmp_path / "run"
    short = [*SHORT, "--families", "lcm", "--turn-tokens", "8", "--task-pool", "256", "--iterations", "6"]
    command = [sys.executable, "-m", "agentrl_core", "train", "--run", str(run), *short]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 1000
    while closed(run) < 2:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 130, output
    assert "--resume" in output
    assert not (run / "summary.json").exists()
    before = pl.scan_ipc(run / "nodes" / "*.arrow").collect()
    assert main(["train", "--run", str(run), *short, "--resume"]) == 0
    after = pl.scan_ipc(run / "nodes" / "*.arrow").collect()
    assert after.head(len(before)).equals(before, null_equal=True)
    draws = pl.scan_ipc(run / "draws" / "*.arrow").collect()
    assert draws["iteration"].unique().sort().to_list() == list(range(6))
    assert draws["trajectory_id"].is_unique().all()
    assert json.loads((run / "summary.json").read_text())["iterations"] == 6


def test_a_model_without_a_warm_start_gets_answer_instructions(tmp_path):
    def is_instructed(config=None, **options):
        model = tmp_path / f"model{len(list(tmp_path.iterdir()))}"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
        return TrainOptions(**({"model": str(model)} | options)).is_instructed

    assert is_instructed()
    assert not is_instructed(warm_start.build(env.ReasoningGym(["lcm"], held_out=0), seed=0)[0].config.to_dict())
    assert not is_instructed(model="")
    assert is_instructed(model="", instructions="on")
    assert not is_instructed(instructions="off")
    with pytest.raises(AgentRLError, match="instructions='maybe'; use auto, on or off"):
        TrainOptions(instructions="maybe")
