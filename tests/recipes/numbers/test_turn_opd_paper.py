"""Worked examples of the paper of turn_opd, computed by the recipe."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from arithmetic import Value
from paper_files import Example
from paper_numbers import Found, PaperExamples, computed

from agentrl_core import Batch, Forest, recipes
from agentrl_core.component import IterationRecord
from agentrl_core.loss import Divergence, Tokens
from agentrl_core.recipes.turn_opd import AdaptiveDepth, TurnBalanced

EXAMPLES = PaperExamples("turn_opd")
DEPTH, LOSS = recipes.TURN_OPD.rollout, recipes.TURN_OPD.loss
assert isinstance(DEPTH, AdaptiveDepth)
assert isinstance(LOSS, Divergence)
SAMPLED = recipes.TURN_OPD.replace(loss=Divergence("sequence_mean", beta=1.0, support="sampled"))


@EXAMPLES.by("weights of a turn of three tokens and of one")
def weights(example: Example) -> Found:
    results = {}
    for name, share in zip(("first", "middle", "last"), example.values["a"].tolist(), strict=True):
        gradient = computed(
            SAMPLED.replace(weight=TurnBalanced(share=share)),
            ["gradient.logprob"],
            members=[{"path": "1 | 3 4 5 ~ 9 9 | 6", "reward": 0}],
            columns={"token": {"teacher_logprob": [-2.0] * 4}},
        )["gradient.logprob"]
        results[name] = gradient  # log p - log q is 1 everywhere
    return results


def trajectories(lengths: Sequence[int], away: Value, rewards: Sequence[float | None]) -> Batch:
    """Return trajectories with these numbers of one-token turns, and the policy's log-ratio to the teacher per turn."""
    forest = Forest()
    forest.add_group(0, "task")
    for member, (length, reward) in enumerate(zip(lengths, rewards, strict=True)):
        trajectory = forest.start(0, member=member)
        for turn in range(length):
            forest.append(trajectory, [1, member], kind="observation" if turn else "prompt")
            forest.append(trajectory, [3 + turn], kind="action", logprobs=[-1.0])
        forest.finish(trajectory, reward=reward, success=None if reward is None else reward > 0)
    batch = forest.freeze()
    turns = np.concatenate([np.arange(length) for length in lengths])
    teacher = np.full(len(batch.column("token", "token")), np.nan)
    teacher[batch.column("trainable", "token") != 0] = -1.0 - np.asarray(away)[turns]
    return batch.with_columns("token", teacher_logprob=teacher)


@EXAMPLES.by("four trajectories of unequal length")
def lengths(example: Example) -> Found:
    batch = trajectories([3, 3, 2, 1], example.values["K"], [1.0, 1.0, 0.0, None])
    return {"taught": DEPTH.taught(batch)}


@EXAMPLES.by("a turn at which the policy is nearer than by chance")
def near(example: Example) -> Found:
    return {"taught": DEPTH.taught(trajectories([3, 2], example.values["K"], [1.0, 0.0]))}


def state_after(
    state: dict[str, float | None], turns: Sequence[int], failed: Sequence[int] = ()
) -> dict[str, float | None]:
    """Return the state after full rollouts with a divergence of 0."""
    lengths, rewards = [*turns, *failed], [*[1.0] * len(turns), *[0.0] * len(failed)]
    batch = trajectories(lengths, np.zeros(max(lengths)), rewards)
    return DEPTH.next(state, IterationRecord.of(batch))


@EXAMPLES.by("turns of ten successes, and of seven")
def coverage(example: Example) -> Found:
    turns = example.values["turns"].astype(int).tolist()
    known: dict[str, float | None] = {"covered": float(example.values["before"]), "depth": None}
    few = state_after(known, turns[: int(example.values["few"])], failed=[20, 20, 20])
    return {
        "covered": state_after(DEPTH.initial_state(), turns, failed=[20])["covered"],
        "covered_of_few": few["covered"],
    }


@EXAMPLES.by("the depth after three measurements")
def smoothed(example: Example) -> Found:
    depths, limits = [], []
    for before, measured in zip(example.values["H"].tolist(), example.values["measured"].tolist(), strict=True):
        state = state_after({"covered": measured, "depth": before}, [1])  # one success does not change the coverage
        depths.append(state["depth"])
        limits.append(DEPTH.limit(9, state))
    return {"depth": np.array(depths), "turns": np.array(limits)}


@EXAMPLES.by("two of four tokens and the rest")
def likeliest(example: Example) -> Found:
    rows = [np.append(example.values[name], 1.0 - example.values[name].sum()) for name in ("p", "q")]
    policy_logprobs, teacher = (torch.from_numpy(np.stack([row, rows[1]])).log() for row in rows)
    streams = {
        "weight_kl": torch.full((2,), 0.5).double(),
        "teacher_top_ids": torch.tensor([[3, 4], [3, 4]]),
        "teacher_top_logprobs": teacher[:, :2],
    }
    tokens = Tokens(policy_logprobs[:, 0], torch.zeros(2), streams, SimpleNamespace(top_logprobs=policy_logprobs))
    return {"loss": LOSS.evaluate(tokens)[0].item()}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_every_example_is_computed() -> None:
    assert EXAMPLES.names == EXAMPLES.all_names
