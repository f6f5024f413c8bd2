"""The denominators of published losses, on worked examples."""

from __future__ import annotations

import pytest
from systems import SYSTEMS

from agentrl_core import Batch, Forest, recipes
from agentrl_core.loss import Policy
from agentrl_core.recipes.dcpo import DCPO


def rollouts(*turns: list[int]) -> Batch:
    """Return one group: a draw for each list, with turns of these token counts; rewards 1, 0, 1, 0, ..."""
    forest = Forest()
    forest.add_group(0, "task")
    for member, lengths in enumerate(turns):
        trajectory = forest.start(0, member=member)
        forest.append(trajectory, [1], kind="prompt")
        for length in lengths:
            forest.append(trajectory, list(range(length)), kind="action", logprobs=[-1.0] * length)
            forest.step(trajectory)
        forest.finish(trajectory, reward=float(member % 2 == 0))
    return forest.freeze()


def weights(policy: object, batch: Batch) -> list[float]:
    return batch.token_weights([0], denominator=policy.denominator, constant=policy.denominator_constant).tolist()[
        : batch.offsets("token")[batch.offsets("step")[1]]
    ]


@pytest.mark.parametrize("name", ["agent_flow", "web_agent_r1"])
def test_every_turn_of_a_draw_counts_the_same(name: str) -> None:
    assert weights(SYSTEMS[name], rollouts([1, 3])) == pytest.approx([1 / 2, 1 / 6, 1 / 6, 1 / 6])


def test_the_constant_of_a_minibatch_does_not_follow_the_filter() -> None:
    """LOOP's code: 4 draws, of which 2 remain: a kept draw weighs 1/4, not 1/2."""
    policy = Policy(aggregate="sequence_mean_sum", constant=32.0)
    batch = rollouts([2], [2], [2], [2])
    weight = batch.token_weights([0, 1], denominator="sequence_mean_sum", constant=4.0)
    assert weight.tolist() == [1 / 8, 1 / 8, 1 / 8, 1 / 8, 0.0, 0.0, 0.0, 0.0]
    update = next(iter(recipes.GRPO.replace(loss=policy).updates(recipes.GRPO.credit(batch))))
    (pack,) = update.pack(max_tokens=64)
    assert pack.streams.weight_kl.tolist() == pytest.approx([1 / 64] * 8)


def test_means_of_responses_are_summed() -> None:
    assert weights(DCPO.loss, rollouts([2], [4])) == [1 / 2, 1 / 2]


def test_both_losses_of_copo_have_a_dual_clip() -> None:
    assert recipes.COPO.loss.clip.dual == 3.0
