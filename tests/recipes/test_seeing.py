"""Recipes of vision agents run an iteration on images with a vision-language model, and train its vision tower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from recipe_loop import names, small
from seeing_loop import SeeingLoop, seeing_model

import agentrl_core as arl

RECIPES = (
    "active_vln",
    "arpo_gui",
    "craft_gui",
    "dart",
    "digirl",
    "gui_g1",
    "gui_libra",
    "mm_helix",
    "ui_s1",
    "ver_ipo",
    "vision_zero",
    "vl_dac",
    "vppo",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:recipes.Hysteresis at")  # its metrics come from a whole run of the game
@pytest.mark.parametrize("name", RECIPES)
def test_an_iteration_trains_the_vision_model(name: str, tmp_path: Path) -> None:
    loop = SeeingLoop(small(name), "padded")
    with arl.Store.open(tmp_path / "run", sync="never") as store:
        collect, batch = loop.collect(store)
        nodes = pl.DataFrame(batch.nodes)
        assert nodes["blobs"].list.len().sum() > 0, "images were shown"
        loop.train(collect, batch)
    assert loop.losses
    assert np.isfinite(loop.losses).all()
    assert loop.norms
    for place, each in enumerate(names(loop.recipe)):
        if loop.norms.get(each, 0.0) > 1e-5:
            pairs = zip(
                loop.models[each].model.vision_model.parameters(),
                seeing_model(place).model.vision_model.parameters(),
                strict=True,
            )
            assert any(not torch.equal(one, other) for one, other in pairs), f"{each} is trained without its vision"
    assert max(loop.norms.values()) > 1e-5
