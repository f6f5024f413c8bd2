"""The demo of screens on a few drawn ones: boxes decide the reward of clicks, controls hide the screen, it trains."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from agentrl_core import env

pytestmark = pytest.mark.usefixtures("one_thread")
BENCH = Path(__file__).parents[2] / "bench"
TRAIN, HELD_OUT = 32, 8
SIDE = 80
TOP = 50


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the program, which imports its neighbours by name."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("demo_screen")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return screens of two boxes on white, in the form of `screens.record`."""
    rng = np.random.default_rng(0)
    count = TRAIN + HELD_OUT
    screens = np.full((count, SIDE, SIDE, 3), 255, np.uint8)
    corners = rng.integers(0, 120, (count, 2, 2))
    boxes = np.concatenate([corners, corners + 40], 2) + np.array([0, TOP, 0, TOP])
    for screen, pair in zip(screens, boxes, strict=True):
        for (left, top, right, bottom), grey in zip(pair, (0, 128), strict=True):
            screen[(top - TOP) // 2 : (bottom - TOP) // 2, left // 2 : right // 2] = grey
    file = tmp_path / "screens.npz"
    np.savez(file, train=TRAIN, seconds=1.5, seed=np.arange(count), screen=screens, boxes=boxes)
    return file


def test_a_click_is_rewarded_only_on_the_visible_part_of_the_button(demo: ModuleType, path: Path) -> None:
    world = demo.RecordedScreens(path)
    paid = 0
    for task in world.tasks(HELD_OUT, split="held_out"):
        (left, top, right, bottom), other = world.boxes[task.payload["screen"]]
        for column in range(8):
            for row in range(8):
                x, y = 20 * column + 10, TOP + 20 * row + 10
                on = left <= x < right and top <= y < bottom
                under = other[0] <= x < other[2] and other[1] <= y < other[3]
                result = world.reset(task, 0).step(f"{column} {row}")
                assert result.success is bool(on and not under)
                assert result.reward == float(result.success)
                assert (result.facts["click_x"], result.facts["click_y"]) == (x, y)
                paid += result.success
    assert paid
    wrong = world.reset(task, 0).step("8 0")
    assert wrong.flags == env.StepFlag.FORMAT_ERROR
    assert not wrong.success


def test_the_controls_hide_the_screen(demo: ModuleType, path: Path) -> None:
    own, other, nothing = (demo.RecordedScreens(path, shows) for shows in ("own", "other", "nothing"))
    for split, places in (("train", range(TRAIN)), ("held_out", range(TRAIN, TRAIN + HELD_OUT))):
        indices = []
        for place, task in zip(places, own.tasks(TRAIN, split=split), strict=True):
            assert task.payload == {"screen": place}
            assert own.prompt(place)["content"] == [own.images[place], "ONE"]
            [image] = demo.engine_images(other.prompt(place))
            assert image != own.images[place]
            indices.append(other.images.index(image))
            assert nothing.prompt(place) == "ONE"
        assert sorted(indices) == list(places)


def test_the_interval_is_of_paired_gains(demo: ModuleType) -> None:
    mean, low, high = demo.interval(np.repeat([0.0, 1.0], 128))
    # The standard error of the mean of 256 gains of 0 or 1 is 0.5 / 16.
    assert mean == 0.5
    assert low == pytest.approx(0.5 - 1.96 / 32, abs=0.005)
    assert high == pytest.approx(0.5 + 1.96 / 32, abs=0.005)


@pytest.mark.parametrize("shows", ["own", "nothing"])
def test_a_policy_is_trained(demo: ModuleType, path: Path, shows: str) -> None:
    options = argparse.Namespace(
        iterations=2, warm_start_steps=2, learning_rate=1e-3, tasks=2, group_size=2, print_every=2
    )
    summary, model, _ = demo.learned(path, shows, options, 0)
    assert 0 <= summary["before"] <= 1
    assert summary["gain"][0] == pytest.approx(summary["after"] - summary["before"])
    assert ("shuffled_after" in summary) == (shows == "own")
    start = demo.build(demo.WORDS, 0)[0]
    moved = {
        name.split(".")[1]
        for (name, one), other in zip(model.named_parameters(), start.parameters(), strict=True)
        if not one.equal(other)
    }
    assert ("vision_model" in moved) == (shows == "own")
    assert "text_model" in moved
