"""ReLIC: windows cut rollouts, and both models are trained on the tokens that the window added."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_loop import Loop, small

import agentrl_core as arl
from agentrl_core.collect import BatchPolicy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["sequence", "tree"])
def test_both_models_learn_inside_a_rollout(layout: Any, tmp_path: Path) -> None:
    loop = Loop(small("relic"), layout, cut=BatchPolicy(max_new_tokens=12))
    gone_on = 0
    with arl.Store.open(tmp_path, sync="never") as store:
        for iteration in range(6):
            loop.train(*loop.collect(store))
            batch = loop.batches[-1]
            keep = batch.column("keep", "token") > 0
            ended = batch.column("truncated", "token") == 0
            assert (keep == (ended | (batch.column("policy_version", "token") == iteration))).all()
            gone_on += int((~keep).any())
            assert (batch.column("advantage", "token") != 0).any()
    assert gone_on > 0, "no rollout had tokens of older weights before it"
    assert np.isfinite(loop.losses).all()
