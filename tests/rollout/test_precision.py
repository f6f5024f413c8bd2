"""The precision in which an action was sampled is a fact, if a program declares it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
from hand_made import tiny_model
from riddles import RIGHT, TOKENIZER, WRONG, Riddles, check_resumes, script, solve
from sampled import RecordingEngine, check_sampled

import agentrl_core as arl
from agentrl_core import engine, recipes
from agentrl_core.component import Where
from agentrl_core.engine import Request
from agentrl_core.env import ExtraColumn
from agentrl_core.rollout import Group, Prefix, RecordPrecision, Rollout


def two_turns(context: str, request: Request) -> str:
    """Play a call, and an answer."""
    return (RIGHT if request.seed % 2 else WRONG) if "go on" in context else "think"


class Mixed(Rollout):
    """A program with one member for each engine, and one that begins with an action that was not sampled."""

    facts: ClassVar[Mapping[str, ExtraColumn]] = RecordPrecision.facts

    async def group(self, group: Group) -> None:
        await group.run(
            [group.start(), group.start(agent="cheap"), group.start(prefix=Prefix(["think"])), group.start(agent="odd")]
        )


class OfTrajectories(Mixed):
    facts: ClassVar[Mapping[str, ExtraColumn]] = {"rollout_precision": ExtraColumn("trajectory")}


def collected(program: Rollout) -> arl.Batch:
    exact = RecordingEngine(script(two_turns))
    cheap, odd = exact.beside(script(two_turns)), exact.beside(script(two_turns))
    exact._engine.precision, cheap._engine.precision = 16, 4  # the third engine does not report it
    engines: dict[str, Any] = {"policy": exact, "cheap": cheap, "odd": odd}
    collect = arl.Collector(engines, Riddles(), recipes.GRPO.replace(rollout=program), task_pool=4)
    batch = collect(tasks=1, group_size=4)
    check_sampled(batch, exact)
    return batch


def test_each_action_has_the_precision_of_the_engine_that_sampled_it() -> None:
    batch = collected(Mixed())
    agents = np.repeat(pl.DataFrame(batch.trajectories)["agent"].to_numpy(), 2)
    precision = batch.column("rollout_precision", "step")
    member = pl.DataFrame(batch.steps)["step"].to_numpy()
    assert len(precision) == 8
    # Members 0 and 2 are the policy's; the first action of the third was not sampled. The last engine reports none.
    policy = precision[agents == 0].tolist()
    assert sorted(np.isnan(policy).tolist()) == [False, False, False, True]
    assert set(np.array(policy)[~np.isnan(policy)]) == {16}
    assert member[np.isnan(precision) & (agents == 0)].tolist() == [0]
    assert precision[agents == 1].tolist() == [4, 4]
    assert np.isnan(precision[agents == 2]).all()
    tokens = batch.column("rollout_precision", "token")
    assert len(tokens) == len(batch.column("token", "token")), "a token has that of its step"


def test_draws_are_selected_by_rollout_precision() -> None:
    batch = collected(OfTrajectories())
    cheap = Where(column="rollout_precision", below=16).holds(batch)
    assert batch.column("agent", "draw")[cheap].tolist() == [1]
    exact = Where(column="rollout_precision", at_least=16).holds(batch)
    assert batch.column("agent", "draw")[exact].tolist() == [0, 0]


def test_rollout_precision_is_absent_unless_declared() -> None:
    assert not solve(recipes.GRPO, two_turns).batch.has("rollout_precision", "step")


def test_jet_rl_resumes_after_interruptions() -> None:
    assert check_resumes(recipes.JET_RL, two_turns) > 1


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 32), ("bfloat16", 16), ("float64", 64)])
def test_a_transformers_engine_reports_the_precision_of_its_model(dtype: str, bits: int) -> None:
    import torch

    model = tiny_model("llama", getattr(torch, dtype), vocab_size=len(TOKENIZER))
    generate = engine.Transformers(model, TOKENIZER)
    assert generate.precision == bits
    model.config.quantization_config = {"load_in_4bit": True}
    assert generate.precision is None


def test_the_mismatch_of_each_precision() -> None:
    from agentrl_core.recipes.jet_rl import mismatch

    batch = collected(Mixed())
    sampled = batch.column("behaviour_logprob", "token").astype(np.float64)
    bits = batch.column("rollout_precision", "token")
    # The trainer's log-probs are 0.03 below those of the cheap engine, and 0.01 above those of the exact one.
    recomputed = np.nan_to_num(sampled) + np.where(bits == 4, -0.03, np.where(bits == 16, 0.01, 5.0))
    mismatches = mismatch(batch.with_columns("token", recomputed_logprob=recomputed))
    assert sorted(mismatches) == [4, 16]
    assert mismatches[4].mean_difference == pytest.approx(0.03, abs=1e-5)
    assert mismatches[16].mean_difference == pytest.approx(0.01, abs=1e-5)
    assert mismatches[4].diagnostics.k1 == pytest.approx(0.03, abs=1e-5)
    assert mismatches[4].diagnostics.k3 == pytest.approx(np.exp(-0.03) - 1 + 0.03, abs=1e-6)
    assert (mismatches[4].is_large, mismatches[16].is_large) == (True, False)
    assert mismatches[4].diagnostics.tokens == int((bits == 4).sum())
