"""Recipes on slime's own samples, through its own reduction and loss path if slime is installed.

slime is on no package index, and its Megatron backend needs a GPU for everything except the parts used here. Without
slime the functions get samples with the same fields, and the loss is not compared.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_world import SmallWorld

import agentrl_core as arl
from agentrl_core import advantage, loss, recipes
from agentrl_core.exceptions import InvalidInputError, MissingDependencyError, UnsupportedError
from agentrl_core.integrations.sequences import Sequences
from agentrl_core.integrations.slime import Functions, samples_of

try:
    from slime.utils.types import Sample
except ImportError:

    @dataclass
    class Sample:  # type: ignore[no-redef]
        """The fields of slime's samples that are read."""

        group_index: int | None = None
        index: int | None = None
        rollout_id: int | None = None
        tokens: list[int] = field(default_factory=list)
        response_length: int = 0
        reward: Any = None
        loss_mask: list[int] | None = None
        rollout_log_probs: list[float] | None = None
        remove_sample: bool = False
        metadata: dict[str, Any] = field(default_factory=dict)

        def get_reward_value(self, args: Any) -> float:
            return self.reward if not args.reward_key else self.reward[args.reward_key]


ARGS = Namespace(reward_key=None)


def random_samples(seed: int, *, groups: int = 3, size: int = 4) -> list[Sample]:
    rng = np.random.default_rng(seed)
    samples = []
    for index in range(groups * size):
        length = int(rng.integers(2, 8))
        samples.append(
            Sample(
                group_index=index // size,
                index=index,
                tokens=rng.integers(0, 50, 3 + length).tolist(),
                response_length=length,
                reward=float(rng.integers(0, 3)),
                loss_mask=[1, *rng.integers(0, 2, length - 1).tolist()] if index % 2 else None,
                rollout_log_probs=(-rng.random(length)).tolist(),
            )
        )
    return samples


def credited(samples: list[Sample], functions: Functions) -> dict[str, Any]:
    """Return the samples of slime's trainer before and after it requests advantages."""
    raw, rewards = functions.rewards(ARGS, samples)
    assert raw == [sample.reward for sample in samples]
    data = {"rewards": rewards, "kl": [torch.zeros(sample.response_length) for sample in samples]}
    functions.advantages(ARGS, data)
    return data


@pytest.mark.parametrize("seed", range(3))
def test_grpo_advantages_match_the_reward_normalisation_of_slime(seed: int) -> None:
    samples = random_samples(seed)
    data = credited(samples, Functions(recipes.GRPO))
    # Its `_post_process_rewards`: (reward - mean) / (std + 1e-6) in groups of equal size, on every token.
    rewards = torch.tensor([sample.reward for sample in samples]).reshape(-1, 4)
    centred = rewards - rewards.mean(dim=-1, keepdim=True)
    expected = (centred / (centred.std(dim=-1, keepdim=True) + 1e-6)).flatten()
    for sample, row_values, number in zip(samples, data["advantages"], expected, strict=True):
        mask = torch.tensor(sample.loss_mask or [1] * sample.response_length)
        torch.testing.assert_close(row_values, number * mask, rtol=1e-5, atol=1e-5)
    assert all(isinstance(value, float) for value in data["rewards"])
    assert [len(row_values) for row_values in data["returns"]] == [sample.response_length for sample in samples]


def test_samples_of_one_rollout_are_one_member_and_turns_have_own_advantages() -> None:
    # The first rollout was split into two samples; it was paid 1, the second 0: +-0.5 / 0.7071 = +-0.7071.
    split = [
        Sample(group_index=0, index=0, rollout_id=7, tokens=[1, 2, 3], response_length=2, reward=0.0),
        Sample(group_index=0, index=1, rollout_id=7, tokens=[1, 4, 5], response_length=2, reward=1.0),
        Sample(group_index=0, index=2, rollout_id=8, tokens=[1, 2, 6], response_length=2, reward=0.0),
    ]
    advantages = credited(split, Functions(recipes.GRPO))["advantages"]
    assert [round(values[0].item(), 4) for values in advantages] == [0.7071, 0.7071, -0.7071]

    turns = recipes.GRPO.replace(
        advantage=(
            advantage.Discounted(),
            advantage.GroupRelative(column="advantage", level="step", group_by="group_id,step", scale="none"),
        )
    )
    paid = [
        Sample(
            group_index=0,
            index=index,
            tokens=[1, 2, 3, 4],
            response_length=3,
            loss_mask=[1, 0, 1],
            reward=reward,
            metadata={"step_rewards": steps},
        )
        for index, (reward, steps) in enumerate([(1.0, [1.0, 0.0]), (0.0, [0.0, 0.0])])
    ]
    # Later rewards add up to 1 + (0 + 1) = 2 and 1 against 0 and 0, so +-1 in the first turn and +-0.5 in the second.
    advantages = credited(paid, Functions(turns))["advantages"]
    assert [values.tolist() for values in advantages] == [[1.0, 0.0, 0.5], [-1.0, 0.0, -0.5]]


def test_invalid_rewards_are_rejected() -> None:
    functions = Functions(recipes.GRPO)
    with pytest.raises(InvalidInputError, match=r"rewards\[0\] is .*; give a list of 2 advantages"):
        functions.advantages(ARGS, {"rewards": [1.0], "kl": [torch.zeros(2)]})
    wrong = Sample(
        group_index=0, index=0, tokens=[1, 2], response_length=1, reward=1.0, metadata={"step_rewards": [1, 2]}
    )
    with pytest.raises(InvalidInputError, match=r"step_rewards of samples\[0\] has 2 numbers for 1 turns"):
        functions.rewards(ARGS, [wrong])


def test_a_missing_slime_package_or_collector_is_reported() -> None:
    try:
        import slime  # noqa: F401
    except ImportError:
        world = SmallWorld()
        batch = arl.Collector(world, world, recipes.GRPO)(tasks=1, group_size=2)
        with pytest.raises(MissingDependencyError, match="slime cannot be imported"):
            samples_of(batch)
        with pytest.raises(MissingDependencyError, match="Megatron backend"):
            Functions(recipes.GRPO).loss(ARGS, {}, torch.zeros(1), None)
    else:
        with pytest.raises(InvalidInputError, match="needs a collector"):
            Functions(recipes.GRPO).rollouts(ARGS, 0, None)


def test_a_collector_makes_slimes_rollouts() -> None:
    types = pytest.importorskip("slime.utils.types", reason="slime is installed by hand")
    from slime.rollout.base_types import RolloutFnTrainOutput

    world = SmallWorld()
    functions = Functions(recipes.GRPO, collector=arl.Collector(world, world, recipes.GRPO))
    args = Namespace(reward_key=None, rollout_batch_size=2, n_samples_per_prompt=4)
    output = functions.rollouts(args, 0, None)
    assert isinstance(output, RolloutFnTrainOutput)
    assert [len(group) for group in output.samples] == [4, 4]
    flat = [sample for group in output.samples for sample in group]
    assert all(isinstance(sample, types.Sample) and sample.status.value == "completed" for sample in flat)
    same = SmallWorld()
    batch = arl.Collector(same, same, recipes.GRPO)(tasks=2, group_size=4)
    expected = Sequences.of(recipes.GRPO.credit(batch), columns=["advantage"])
    _, rewards = functions.rewards(args, flat)
    for sample, actual, prompt, response, values in zip(
        flat, rewards, expected.prompts, expected.responses, expected.columns["advantage"], strict=True
    ):
        assert sample.tokens == [*prompt.tolist(), *response.tolist()]
        np.testing.assert_allclose(actual, values, atol=1e-6)
    assert functions.rollouts(args, 1, None).samples[0][0].rollout_id == 8
    with pytest.raises(UnsupportedError, match="training rollouts only"):
        functions.rollouts(args, 2, None, evaluation=True)


@pytest.fixture
def megatron(tmp_path: Path) -> Iterator[Any]:
    """Set up one process as slime's Megatron requires it."""
    mpu = pytest.importorskip("megatron.core.parallel_state", reason="slime's backend is installed by hand")
    pytest.importorskip("slime.backends.megatron_utils.loss", reason="slime is installed by hand")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    mpu.initialize_model_parallel()
    yield mpu
    mpu.destroy_model_parallel()
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("megatron")
@pytest.mark.parametrize("per_token", [False, True])
def test_the_loss_equals_the_loss_of_slime_for_the_same_formula(per_token: bool) -> None:
    from slime.backends.megatron_utils import loss as theirs
    from slime.backends.megatron_utils.cp_utils import get_sum_of_sample_mean

    samples = random_samples(0)
    data = credited(samples, Functions(recipes.GRPO))
    lengths = [len(sample.tokens) for sample in samples]
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(1, sum(lengths), 50, generator=generator).requires_grad_()
    masks = [torch.tensor(sample.loss_mask or [1] * sample.response_length) for sample in samples]
    batch = {
        "unconcat_tokens": [torch.tensor(sample.tokens) for sample in samples],
        "total_lengths": lengths,
        "response_lengths": [sample.response_length for sample in samples],
        "loss_masks": masks,
        "advantages": data["advantages"],
        "log_probs": [-4.0 + 0.3 * torch.randn(len(mask), generator=generator) for mask in masks],
    }
    args = Namespace(
        reward_key=None,
        use_rollout_logprobs=False,
        rollout_temperature=1.0,
        log_probs_chunk_size=-1,
        allgather_cp=False,
        entropy_coef=0.0,
        use_opsm=False,
        advantage_estimator="grpo",
        eps_clip=0.2,
        eps_clip_high=0.2,
        eps_clip_c=None,
        get_mismatch_metrics=False,
        use_tis=False,
        use_kl_loss=False,
        rollout_top_p=1.0,
        custom_pg_loss_reducer_function_path=None,
        true_on_policy_mode=False,
        qkv_format="thd",
        use_unbiased_kl=False,
    )
    reduce = get_sum_of_sample_mean(lengths, batch["response_lengths"], masks, calculate_per_token_loss=per_token)
    with torch.compiler.set_stance("force_eager"):
        expected, _ = theirs.policy_loss_function(args, batch, logits, reduce)
    (their_gradient,) = torch.autograd.grad(expected, logits)
    recipe = recipes.GRPO.replace(loss=loss.Policy(clip=loss.Clip(0.2, 0.2)))
    loss_value, log = Functions(recipe).loss(args, batch, logits, reduce)
    (our_gradient,) = torch.autograd.grad(loss_value, logits)
    assert loss_value.item() == pytest.approx(expected.item(), rel=1e-5)
    torch.testing.assert_close(our_gradient, their_gradient, rtol=1e-5, atol=1e-6)
    assert their_gradient.abs().max() > 1e-3
    assert log["ratio"] / len(samples) > 0.1
