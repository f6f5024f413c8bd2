"""Worked examples of the paper of rl_100, computed by the recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from arithmetic import Value
from common_examples import given_advantages, one_rollout
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed

from agentrl_core.loss import Clip
from agentrl_core.recipes.rl_100 import RL_100, RL_100_ONLINE

EXAMPLES = PaperExamples("rl_100")
LOSSES = given_advantages(RL_100, clip=Clip(0.2, 0.2))
"""The recipe with the clip range of the examples."""


def objectives(ratios: Value, advantage: float) -> tuple[Value, Value]:
    """Return the terms of an action's tokens, and their sum."""
    advantages, old = np.full(len(ratios), advantage), np.full(len(ratios), -1.0)
    new = old + np.log(ratios)
    alone = [one_rollout(LOSSES, old[[at]], new[[at]], advantages[[at]])["loss"][0] for at in range(len(ratios))]
    return -np.array(alone), -len(ratios) * one_rollout(LOSSES, old, new, advantages)["loss"]


@EXAMPLES.by("offline advantages and the objective over three denoising steps")
def offline(example: Example) -> Found:
    given = example.values
    columns = {"step": {"action_value": given["Q"].tolist(), "state_value": given["V"].tolist()}}
    members = [{**member, "group": f"{place}"} for place, member in enumerate(answers([3, 3, 1], [0, 0, 0]))]
    result = computed(RL_100, ["step.advantage"], members=members, columns=columns)
    advantage = result["step.advantage"]
    (first, one), (second, other) = (
        objectives(given[f"r_{name}"], float(advantage[place])) for place, name in enumerate(("first", "second"))
    )
    sums = np.concatenate([one, other])
    return {"advantage_n_minus_1": advantage, "terms_first": first, "terms_second": second, "objective": sums}


def gate(old: Value, new: float) -> tuple[float, bool]:
    """Return the improvement that a policy needs, and whether one of this value is kept.

    Two trajectories are stored, one with a value 1 above that of the old policy and one 1 below. The new policy samples
    each as often as gives its value.
    """
    above = (new - old.sum() + 1.0) / 2.0
    values = [(old + each / len(old)).tolist() for each in (1.0, -1.0)]
    members = [
        {"path": "1 " + " ~ 9 ".join(["| 3"] * len(old)), "reward": 0, "logprobs": [-1.0] * len(old)} for _ in values
    ]
    columns = {"step": {"action_value": np.ravel(values).tolist(), "state_value": [0.0] * 2 * len(old)}}
    gains = computed(RL_100, ["token.gain"], members=members, columns=columns)["token.gain"]
    moved = np.repeat(np.log([2 * above, 2 * (1 - above)]) / len(old), len(old))
    loss = computed(
        RL_100,
        ["loss"],
        members=members,
        columns={"token": {"gain": gains.tolist()}},
        policy={"logprob": (moved - 1.0).tolist()},
        stage="evaluation",
    )["loss"][0]
    when = RL_100.hooks[2].when
    state = when.moved(when.initial_state(), {when.metric: loss})
    return -float(gains.mean()), when.value(state) == 0.0


@EXAMPLES.by("online update of three steps")
def online(example: Example) -> Found:
    """Rollouts of one step: the critic's pay the returns, the policy's the excess over the old value."""
    given, recipe = example.values, RL_100_ONLINE.replace(epochs=1, minibatches=1)
    count = len(given["A"])

    def compute(rewards: Value, before: Value, **models: dict[str, list[float]]) -> Mapping[str, Value]:
        members = [
            {"group": f"{place}", "path": "1 | 3", "reward": 0, "steps": [{"reward": each}]}
            for place, each in enumerate(rewards.tolist())
        ]
        values = {"value": before.tolist(), "next_value": [0.0] * count}
        columns = {"step": values, "token": {"old_value": before.tolist()}}
        names = ["step.advantage", "loss.policy", "loss.critic"]
        return computed(recipe, names, members=members, columns=columns, **models)

    nothing = np.zeros(count)
    policy = compute(
        given["A"],
        nothing,
        policy={"logprob": (np.log(given["rho"]) - 1.0).tolist()},
        critic={"value": nothing.tolist()},
    )
    critic = compute(given["R"], given["V_old"], critic={"value": given["V"].tolist()})
    return {"normalised": policy["step.advantage"], "policy": policy["loss.policy"], "value": 2 * critic["loss.critic"]}


@EXAMPLES.by("gate with a positive and with a negative estimate")
def gates(example: Example) -> Found:
    given = example.values
    delta, first = gate(given["q_old"], float(given["q_new"].sum()))
    _, second = gate(given["q_old"], float(given["q_next"].sum()))
    old = np.full(2, float(given["old_b"]) / 2.0)
    delta_b, first_b = gate(old, float(given["new_b"]))
    _, second_b = gate(old, float(given["next_b"]))
    return {
        "delta": delta,
        "accept_first_candidate": first,
        "accept_second_candidate": second,
        "delta_negative": delta_b,
        "accept_first_negative": first_b,
        "accept_second_negative": second_b,
    }


@EXAMPLES.by("chunks of an episode that fails and of one that is cut")
def chunks(example: Example) -> Found:
    """A chunk is a step with its own reward; the discount between chunks is that of steps."""
    given = example.values
    discount = float(given["gamma"]) ** 3
    powers = float(given["gamma"]) ** np.arange(3)
    chunk_rewards = [float(powers @ given[name]) for name in ("r1", "r2")]
    gae, _ = RL_100_ONLINE.chain("advantage")
    assert gae.lam == given["lam"]
    path = "1 | 3 ~ 9 | 3"
    members = [
        {"path": path, "steps": [{"reward": 0.0}] * 2, "reward": 0},
        {
            "path": path,
            "steps": [{"reward": chunk_rewards[0]}, {"reward": chunk_rewards[1], "truncated": True}],
            "reward": 0,
            "status": "truncated",
        },
    ]
    columns = {"step": {"value": given["V"].tolist() * 2, "next_value": [9.0, 9.0, 9.0, float(given["V_after"])]}}
    result = computed(
        RL_100_ONLINE.replace(advantage=replace(gae, gamma=discount)),
        ["step.advantage", "step.return"],
        members=members,
        columns=columns,
    )
    failed, cut = np.split(result["step.advantage"], 2)
    return {"advantage_failed": failed, "advantage_cut": cut, "target_cut": result["step.return"][2:]}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)


def test_the_discount_of_the_code() -> None:
    assert RL_100_ONLINE.chain("advantage")[0].gamma == 0.99


def test_the_clip_ranges_of_the_code() -> None:
    assert RL_100.chain("loss")[0].loss.clip == Clip(0.25, 0.25)
    assert RL_100_ONLINE.chain("loss")[1].clip == Clip(0.2, 0.2)
