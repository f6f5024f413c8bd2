"""Worked examples of the paper of prime, computed by the recipe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from arithmetic import Value
from compared import column
from paper_files import Example
from paper_numbers import Found, PaperExamples, answers, computed
from rollouts import small

from agentrl_core import recipes
from agentrl_core.advantage import GroupRelative
from agentrl_core.recipes.prime import LeaveOneOutProcess
from agentrl_core.reward import ImplicitProcess

EXAMPLES = PaperExamples("prime")


PRIME = recipes.PRIME.replace(minibatches=1)
"""The recipe with all tokens of a batch in one loss."""
IN_CODE = (
    ImplicitProcess(scale="max_return"),
    GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
)
"""The recipe with the public code's scale and its whitening."""


def prime_group(d_a: Value, d_b: Value, d_c: Value) -> dict[str, Any]:
    """Return three answers whose tokens have these log-ratios of the reward model."""
    ratios = np.concatenate([d_a, d_b, d_c])
    return {
        "members": answers([3, 2, 1], [1, 0, 1]),
        "columns": {
            "token": {"reward_reference_logprob": [-5.0] * 6, "reward_model_logprob": (ratios - 5.0).tolist()},
        },
        "reward_model": {"logprob": (ratios - 5.0).tolist()},
    }


@EXAMPLES.by("process rewards and PRM loss of a group of three")
def prime_rewards(example: Example) -> Found:
    group = prime_group(*(example.values[name] for name in ("d_a", "d_b", "d_c")))
    result = computed(PRIME, ["token.process_reward", "loss.reward_model"], **group)
    rewards = result["token.process_reward"]
    return {
        "process_reward_a": rewards[:3],
        "process_reward_b": rewards[3:5],
        "prm_loss": result["loss.reward_model"],
    }


@EXAMPLES.by("advantages of that group")
def prime_advantages(example: Example) -> Found:
    group = prime_group(*(example.values[name] / 0.05 for name in ("r_a", "r_b", "r_c")))
    advantages = computed(PRIME, ["token.advantage"], **group)["token.advantage"]
    return {"advantage_a": advantages[:3], "advantage_b": advantages[3:5], "advantage_c": advantages[5:]}


@EXAMPLES.by("the same rewards by the code's leave-one-out")
def prime_scaled(example: Example) -> Found:
    rewards = np.concatenate([example.values[name] for name in ("r_a", "r_b", "r_c")])
    batch = small([(0, [3]), (0, [2]), (0, [1])], draw_score=[1, 0, 1], token_process_reward=rewards)
    token_values = np.array(column(LeaveOneOutProcess()(batch), level="token"))
    return {"process_a": token_values[:3], "process_b": token_values[3:5]}


@EXAMPLES.by("the code's scale of process rewards, and whitening")
def prime_code(example: Example) -> Found:
    ratios = np.concatenate([example.values["q_a"], example.values["q_b"]])
    batch = small([(0, [3]), (0, [2])], token_reward_model_logprob=ratios, token_reward_reference_logprob=[0.0] * 5)
    white = small([(0, [3])], draw_score=[1], token_advantage=example.values["A"])
    scores = np.array(column(IN_CODE[0](batch), "process_reward", "token"))
    return {"score_a": scores[:3], "whitened": np.array(column(IN_CODE[1](white), level="token"))}


@pytest.mark.parametrize("name", EXAMPLES.names)
def test_the_recipe_computes_the_example(name: str) -> None:
    EXAMPLES.check(name)
