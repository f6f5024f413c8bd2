"""T-PPO on responses that windows cut: the policy trains on new tokens, the critic on finished responses."""

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
def test_windows_are_trained(layout: Any, tmp_path: Path) -> None:
    loop = Loop(small("t_ppo"), layout, cut=BatchPolicy(max_new_tokens=12))
    unfinished = ended = 0
    with arl.Store.open(tmp_path, sync="never") as store:
        for iteration in range(6):
            loop.train(*loop.collect(store))
            batch = loop.batches[-1]
            cut = np.isnan(batch.column("success", "draw"))
            unfinished, ended = unfinished + int(cut.sum()), ended + int((~cut).sum())
            newest, keep = batch.column("policy_version", "token"), batch.column("keep", "token")
            assert ((newest == iteration) == (keep > 0)).all(), "the tokens of this iteration, and no others"
    assert unfinished > 0
    assert ended > 0
    assert np.isfinite(loop.losses).all()
