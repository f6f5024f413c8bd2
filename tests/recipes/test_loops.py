"""Run every recipe for several iterations through the public path, with kills; the result is the same."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import recipe_loop
import torch
from recipe_loop import ITERATIONS, Loop, go_on, model, reasons, small
from riddles import TABLES
from sampled import check_sampled
from wide import spread

import agentrl_core as arl
from agentrl_core import recipes
from agentrl_core.exceptions import AgentRLError
from agentrl_core.recipe import Recipe

NAMES = recipes.names()
SAMPLES_NOTHING = {"bq_nco"}
"""Recipes whose trajectories are all given, so that no segment can be interrupted."""


def plain_run(name: str, folder: Path) -> Loop:
    """Run all iterations at once, in sequences; exactly the sampled tokens are trained."""
    loop = Loop(small(name), "sequence")
    with arl.Store.open(folder, sync="never") as store:
        for _ in range(ITERATIONS):
            collect, batch = loop.collect(store)
            check_sampled(batch, loop.recorder)
            loop.train(collect, batch)
    return loop


def killed_run(name: str, folder: Path) -> Loop:
    """Run the same as trees, killed in the middle of the second iteration and between batch and update of the third."""
    loop = Loop(small(name), "tree")
    with arl.Store.open(folder, sync="never") as store:
        loop.train(*loop.collect(store))
        if name not in SAMPLES_NOTHING:
            with pytest.raises(KeyboardInterrupt):
                loop.collect(store, stops=3)
    loop.recipe = Recipe.from_toml(loop.recipe.to_toml())
    with arl.Store.open(folder, sync="never") as store:
        loop.train(*loop.collect(store))
        _, batch = loop.collect(store)
    with arl.Store.open(folder, sync="never") as store:
        collect, again = loop.collect(store)
        assert_equal(again, batch)
        loop.train(collect, again)
    return loop


def assert_equal(one: arl.Batch, other: arl.Batch) -> None:
    """Assert equal tables and scores."""
    for table in TABLES:
        first, second = (pl.DataFrame(getattr(each, table)).drop("created_us", strict=False) for each in (one, other))
        assert first.equals(second, null_equal=True), table
    np.testing.assert_array_equal(one.column("score", "draw"), other.column("score", "draw"))


def assert_trained(loop: Loop) -> None:
    """Assert that exactly the tokens to train were trained, and that all numbers are finite."""
    assert loop.losses
    assert np.isfinite(loop.losses).all()
    trained = {training.model for training in loop.recipe._trainings}
    for place, (name, trained_model) in enumerate(loop.models.items()):
        pairs = zip(trained_model.parameters(), model(place).parameters(), strict=True)
        moved = any(not torch.equal(one, other) for one, other in pairs)
        assert moved == (name in trained | loop.changed), f"{name} {'moved' if moved else 'did not move'}"
        # Rounding alone would move weights under Adam.
        assert name not in trained or loop.norms[name] > 1e-5, f"{name} has gradients up to {loop.norms[name]}"
        assert all(torch.isfinite(parameter).all() for parameter in trained_model.parameters())


@pytest.mark.parametrize("name", spread(name for name in NAMES if name not in reasons()))
@pytest.mark.filterwarnings("ignore")
def test_a_recipe_trains_the_same_with_and_without_kills(name: str, tmp_path: Path) -> None:
    one, other = plain_run(name, tmp_path / "whole"), killed_run(name, tmp_path / "cut")
    assert_trained(one)
    assert_trained(other)
    for first, second in zip(one.batches, other.batches, strict=True):
        assert_equal(first, second)
    # Layouts differ by rounding, which advantages that are whitened over a small batch enlarge.
    np.testing.assert_allclose(other.losses, one.losses, rtol=1e-3, atol=1e-3)


def test_recipes_that_cannot_run_have_a_reason(tmp_path: Path) -> None:
    assert set(reasons()) <= set(NAMES)
    assert len(reasons()) < len(NAMES)
    for name, why in reasons().items():
        assert why.strip()
        with pytest.raises(AgentRLError):
            plain_run(name, tmp_path / name)


KILLED = ("ppo", "arpo_gui", "mopps")


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="processes are killed as on Unix")
@pytest.mark.filterwarnings("ignore")
def test_a_killed_process_resumes_with_identical_weights_and_batches(tmp_path: Path) -> None:
    command = [sys.executable, recipe_loop.__file__, str(tmp_path), *KILLED]
    completed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1200)
    codes = {(name, int(moment)): int(code) for name, moment, code in map(str.split, completed.stdout.splitlines())}
    for name in KILLED:
        assert [codes[name, moment] for moment in (1, 2, 0)] == [-signal.SIGKILL, -signal.SIGKILL, 0], completed.stderr
        folder = tmp_path / f"{name} undisturbed"
        folder.mkdir()
        go_on(name, folder, dies=0)
        one, other = (torch.load(each / "end.pt", weights_only=True) for each in (folder, tmp_path / name))
        assert one.keys() == other.keys()
        for model_name, weights in one.items():
            for key, value in weights.items():
                assert torch.equal(value, other[model_name][key]), f"{name}: {model_name}.{key}"
        with arl.Store.open(folder / "run") as first, arl.Store.open(tmp_path / name / "run") as second:
            for iteration in range(ITERATIONS):
                assert_equal(first.batch(iteration), second.batch(iteration))
