"""Images from an environment to a real engine, the store, the rollout log and the trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from gallery import TURNS, Gallery
from vision_models import build

import agentrl_core as arl
from agentrl_core import engine, recipes, rollout
from agentrl_core.engine import Request, Sampling, Segment
from agentrl_core.rollout import Branch

SAMPLING = Sampling(temperature=0.8, max_tokens=5)


class Counted(engine.Transformers):
    """Counts its requests, and is interrupted after some answers."""

    request_count: int = 0
    most: int | None = None

    async def generate(self, request: Request) -> Segment:
        if self.request_count == self.most:
            raise KeyboardInterrupt
        self.request_count += 1
        return await super().generate(request)


def agrees(batch: Any, model: Any, processor: Any) -> None:
    """The log-probs of the engine equal those of the trained model."""
    known = arl.annotate(batch, "recomputed_logprob", model, processor=processor)
    sampled = np.asarray(batch.column("behaviour_logprob", "token"))
    assert np.isfinite(sampled).sum() > 20
    np.testing.assert_allclose(known.column("recomputed_logprob", "token"), sampled, atol=1e-4)


class Forks(rollout.Rollout):
    """Fork before the second action, and inside of it."""

    async def branch(self, branch: Branch) -> None:
        await branch.turn()
        second = await branch.turn()
        for fork in (branch.fork(second.begin), branch.fork(second.position(1))):
            while not fork.over:
                await fork.turn()
        while not branch.over:
            await branch.turn()


@pytest.mark.parametrize("family", ["qwen2_5_vl", "smolvlm", "gemma3"])
@pytest.mark.parametrize("program", ["turns", "forks"])
def test_engine_and_trainer_agree(family: str, program: str, tmp_path: Path) -> None:
    model, processor = build(family)
    recipe = recipes.GRPO if program == "turns" else recipes.GRPO.replace(rollout=Forks())
    with arl.Store.open(tmp_path) as store:
        collect = arl.Collector(
            engine.Transformers(model, processor), Gallery(), recipe, store=store, task_pool=4, sampling=SAMPLING
        )
        batch = collect(tasks=2, group_size=2)
        agrees(batch, model, processor)
        collect.end_iteration(recipes.GRPO.credit(batch), {})
    with arl.Store.open(tmp_path, read_only=True) as store:
        agrees(store.batch(iteration=0), model, processor)


def test_an_interrupted_run_resumes_with_its_recorded_responses(tmp_path: Path) -> None:
    model, processor = build("smolvlm")

    def run(most: int | None, folder: Path) -> tuple[Counted, Any]:
        generate = Counted(model, processor, batch_invariant=True)
        generate.most = most
        with arl.Store.open(folder) as store:
            collect = arl.Collector(generate, Gallery(), recipes.GRPO, store=store, task_pool=4, sampling=SAMPLING)
            try:
                return generate, collect(tasks=2, group_size=2)
            except KeyboardInterrupt:
                return generate, None

    uninterrupted, expected = run(None, tmp_path / "whole")
    first, nothing = run(5, tmp_path / "cut")
    second, batch = run(None, tmp_path / "cut")
    assert nothing is None
    assert uninterrupted.request_count == 2 * 2 * TURNS
    assert 0 < second.request_count < uninterrupted.request_count, "answers of the rollout log are not asked again"
    assert first.request_count + second.request_count >= uninterrupted.request_count
    for table in ("nodes", "trajectories"):
        frames = [pl.DataFrame(getattr(each, table)).drop("created_us", strict=False) for each in (batch, expected)]
        assert frames[0].equals(frames[1], null_equal=True)
    agrees(batch, model, processor)
