"""The runner of `bench/evidence`: runs and failures are records, and a kill loses none of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import arms
import pretrained
import pytest
import records
import runner
import tiny_model
import training
import warm_start
from records import Records, Run
from worlds import WORLDS, World

from agentrl_core.train.models import Models

pytestmark = pytest.mark.usefixtures("one_thread")

FOLDER = Path(__file__).parents[2] / "bench" / "evidence"
SETTINGS = {
    "slips": 0.3,
    "steps": 2,
    "slip_steps": 1,
    "budget": 400,
    "turn_tokens": 5,
    "context_tokens": 160,
    "tasks": 64,
    "held_out": 4,
}
RUNS = [Run("tiny", "grpo", seed) for seed in range(3)]
PROGRAM = f"""
import sys
from pathlib import Path
sys.path.append({str(FOLDER)!r})
import runner, warm_start
from chain import Chain
from records import Records, Run
from worlds import WORLDS, World
WORLDS["tiny"] = World("tiny", Chain, **{SETTINGS!r})
warm_start.CACHE = Path(sys.argv[2])
runs = [Run("tiny", "grpo", seed) for seed in range(3)]
print(runner.fill(Records(Path(sys.argv[1])), runs, 1, 60))
"""


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> World:
    """Return a world whose runs take a second; use a separate cache."""
    world = World("tiny", WORLDS["chain"].make, **SETTINGS)  # type: ignore[arg-type]
    monkeypatch.setitem(WORLDS, "tiny", world)
    monkeypatch.setattr(warm_start, "CACHE", tmp_path / "cache")
    return world


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


@pytest.mark.slow
def test_a_kill_loses_no_record_and_repeats_none(tmp_path: Path) -> None:
    path, command = tmp_path / "runs.jsonl", [sys.executable, "-c", PROGRAM]
    arguments = [str(path), str(tmp_path / "cache")]
    killed = subprocess.Popen([*command, *arguments], start_new_session=True)
    while not lines(path):
        assert killed.poll() is None, "it ended before it was killed"
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    content = path.read_bytes()
    first_records = lines(path)
    assert len(first_records) < len(RUNS)
    path.write_bytes(content + b'{"world": "ti')  # as if the process was killed within a line
    added = subprocess.run([*command, *arguments], check=True, capture_output=True, text=True).stdout
    assert added.splitlines()[-1] == str(len(RUNS) - len(first_records))
    assert path.read_bytes().startswith(content)
    written_records = lines(path)
    assert [Run(each["world"], each["arm"], each["seed"]) for each in written_records] == RUNS
    for each in written_records:
        assert each["status"] == "done"
        assert each["curve"][-1][0] >= SETTINGS["budget"]
        assert len(each["commit"]) == 40
    assert len({each["start"] for each in written_records}) == len(RUNS), "each seed has a warm start of its own"


def test_arms_of_a_seed_share_their_warm_start(tiny: World) -> None:
    first = warm_start.load(tiny, 0)
    again, other = warm_start.load(tiny, 0), warm_start.load(tiny, 1)
    assert first.digest == again.digest
    assert first.digest != other.digest
    assert warm_start._key(tiny) != warm_start._key(WORLDS["chain"])
    assert warm_start._key(tiny) != warm_start._key(replace(tiny, build=WORLDS["clicks"].build))


def test_the_same_run_has_the_same_curve_and_another_sampling_seed_another(tiny: World) -> None:
    assert tiny.budget == 400
    results = {arm: runner.measured(Run("tiny", arm, 0)) for arm in ("grpo", "grpo+0", "grpo+1")}
    assert all(each["status"] == "done" for each in results.values()), results
    curves = {arm: [row[0] for row in each["curve"]] for arm, each in results.items()}
    assert curves["grpo"] == curves["grpo+0"]
    assert curves["grpo"] != curves["grpo+1"]


def test_a_pretrained_model_is_the_start_of_every_seed(
    tiny: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny_model.build(tiny.make().words, 0)
    monkeypatch.setattr(records, "ROOT", tmp_path)
    world = replace(tiny, pretrained="model", rate=0.0)
    with pytest.raises(FileNotFoundError, match=r"bench/smollm2\.py"):
        pretrained.load(world)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    monkeypatch.setitem(WORLDS, "tiny", world)
    results = [runner.measured(Run("tiny", "grpo", seed)) for seed in range(2)]
    assert [each["status"] for each in results] == ["done", "done"], results
    assert results[0]["start"] == results[1]["start"]
    assert results[0]["curve"] != results[1]["curve"]
    assert not warm_start.CACHE.exists()


def test_a_vision_model_is_trained_from_a_warm_start(tiny: World, monkeypatch: pytest.MonkeyPatch) -> None:
    clicks = WORLDS["clicks"]
    # 17 iterations; a model that clicks at random hits a button in some of them.
    settings = {**SETTINGS, "budget": 17 * 192, "turn_tokens": clicks.turn_tokens, "context_tokens": 96, "steps": 40}
    monkeypatch.setitem(WORLDS, "tiny", World("tiny", clicks.make, build=clicks.build, **settings))  # type: ignore[arg-type]
    trained = []

    class Kept(Models):
        """Models that the test reads afterwards."""

        def __post_init__(self) -> None:
            super().__post_init__()
            trained.append(self.policy)

    monkeypatch.setattr(training, "Models", Kept)
    result = runner.measured(Run(tiny.name, "grpo", 0))
    assert result["status"] == "done", result
    assert result["curve"][-1][0] >= settings["budget"]
    start = warm_start.load(WORLDS["tiny"], 0)
    assert result["start"] == start.digest
    [policy] = trained
    for part in ("vision_model", "text_model"):
        before, after = (getattr(each.model, part).state_dict() for each in (start.model, policy))
        assert any((before[name] != after[name]).any() for name in before), part


def test_the_rate_of_a_world_scales_that_of_the_arm(tiny: World) -> None:
    start = warm_start.load(tiny, 0)

    def curve(arm: str, rate: float) -> list[list[float]]:
        world = replace(tiny, rate=rate, budget=1500)
        points: list[list[float]] = training.train(world, arms.arm(arm), 0, start)["curve"]
        return points

    # A teacher's advantages are not 0, even if no rollout succeeds.
    assert curve("on_policy_distillation", 0.0) == curve("grpo", 0.0), "without steps, arms are equal"
    assert curve("on_policy_distillation", 0.0) != curve("on_policy_distillation", 100.0)


def test_an_arm_that_the_loop_cannot_run_is_a_record(tiny: World) -> None:
    result = runner.measured(Run(tiny.name, "copo", 0))
    assert result["status"] == "refused"
    assert "answer_cluster" in result["error"]


def test_a_run_that_fails_or_is_killed_is_a_record(tiny: World, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setitem(WORLDS, "tiny", World("tiny", tiny.make, **{**SETTINGS, "held_out": 10**6}))  # type: ignore[arg-type]
    study = Records(tmp_path / "runs.jsonl")
    assert runner.fill(study, RUNS[:1], 1, 60, note="x") == 1
    [record] = lines(tmp_path / "runs.jsonl")
    assert record["status"] == "failed"
    assert "ask for fewer" in record["error"]
    assert record["note"] == "x"
    assert RUNS[0] in Records(study.path)
    assert runner._killed(signal.SIGKILL)["status"] == "failed"


def test_no_run_begins_after_the_minutes(tiny: World, tmp_path: Path) -> None:
    study = Records(tmp_path / "runs.jsonl")
    assert runner.fill(study, [Run(tiny.name, "grpo", 0)], 1, minutes=0) == 0
    assert not len(study)


def test_a_version_names_changes_that_are_not_committed() -> None:
    try:
        version = records.version()
    except (FileNotFoundError, subprocess.CalledProcessError):
        pytest.skip("this is not a git clone")
    assert version.keys() <= {"commit", "changes"}
    assert records.git("cat-file", "-t", version["commit"]).strip() == "commit"
