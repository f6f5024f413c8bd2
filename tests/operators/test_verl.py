"""Every estimator of verl 0.9.1 that is a composition of these operators, on random ragged groups and masks."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from verl.trainer.ppo import core_algos

from agentrl_core import advantage, group, returns
from agentrl_core.operators.returns import optimal_token_baseline

SEEDS = range(4)
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


class Rollouts:
    """Rows of tokens with tool tokens between, in ragged groups of 1 to 6 that are shuffled."""

    def __init__(self, seed: int, *, contiguous: bool = False):
        rng = np.random.default_rng(seed)
        sizes = [1, 2, *rng.integers(2, 7, size=5)]
        self.ids = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
        rows, length = len(self.ids), 24
        lengths = rng.integers(3, length + 1, size=rows)
        self.mask = np.arange(length) < lengths[:, None]
        if not contiguous:
            self.mask &= rng.random((rows, length)) < 0.7
            self.mask[:, 0] = True
        last = length - 1 - self.mask[:, ::-1].argmax(axis=1)
        self.scores = rng.integers(-128, 129, size=rows) / 64  # verl's vectorised GRPO computes in float32
        self.scores[self.ids == 1] = 0.5  # a group of equal rewards
        self.rewards = np.zeros((rows, length))
        self.rewards[np.arange(rows), last] = self.scores
        self.dense_rewards = rng.normal(size=(rows, length)) * self.mask
        self.values = rng.normal(size=(rows, length))
        self.logprobs = -rng.exponential(size=(rows, length))
        self.sum_pi_squared = rng.random((rows, length))
        self.weights = rng.random((rows, length)) * 2
        self.tokens = self.mask.sum(axis=1)

    def verl(self, estimator: str, rewards: np.ndarray | None = None, **options: object) -> np.ndarray:
        result = core_algos.get_adv_estimator_fn(estimator)(
            torch.from_numpy(self.rewards if rewards is None else rewards).clone(),
            response_mask=torch.from_numpy(self.mask).double(),
            **options,
        )
        return np.stack([result[0].numpy(), result[1].numpy()])

    def on_tokens(self, row_values: np.ndarray) -> np.ndarray:
        return row_values[:, None] * self.mask

    def whitened(self, tokens: np.ndarray) -> np.ndarray:
        return group.whiten(tokens.ravel(), valid=self.mask.ravel()).reshape(tokens.shape)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("estimator", "name", "options"),
    [
        ("grpo", "verl-0.9/grpo", {}),
        ("grpo_vectorized", "verl-0.9/grpo_vectorized", {}),
        ("grpo", "verl-0.9/dr_grpo", {"norm_adv_by_std_in_grpo": False}),
        ("rloo", "verl-0.9/rloo", {}),
        ("rloo_vectorized", "verl-0.9/rloo_vectorized", {}),
    ],
)
def test_outcome_estimators(seed: int, estimator: str, name: str, options: dict[str, object]) -> None:
    rollouts = Rollouts(seed)
    expected = rollouts.verl(estimator, index=rollouts.ids, **options)[0]
    result = group.normalise(rollouts.scores, rollouts.ids, **advantage.compat(name))
    np.testing.assert_allclose(rollouts.on_tokens(result), expected, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_opo_weighs_by_length(seed: int) -> None:
    rollouts = Rollouts(seed)
    expected = rollouts.verl("opo", index=rollouts.ids)[0]
    options = advantage.compat("verl-0.9/opo")
    result = group.normalise(rollouts.scores, rollouts.ids, weights=rollouts.tokens, **options)
    np.testing.assert_allclose(rollouts.on_tokens(result), expected, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_gae(seed: int) -> None:
    rollouts = Rollouts(seed)
    gamma, lam = 0.97, 0.9
    expected = rollouts.verl(
        "gae", rollouts.dense_rewards, values=torch.from_numpy(rollouts.values), gamma=gamma, lam=lam
    )
    advantages, targets = returns.gae(rollouts.dense_rewards, rollouts.values, gamma=gamma, lam=lam, mask=rollouts.mask)
    np.testing.assert_allclose(targets[rollouts.mask], expected[1][rollouts.mask], **CLOSE)
    arguments = {"gamma": gamma, "lam": lam, "mask": rollouts.mask, "whiten": True}
    result, same = returns.gae(rollouts.dense_rewards, rollouts.values, **arguments)
    np.testing.assert_array_equal(result, rollouts.whitened(advantages))
    np.testing.assert_array_equal(same, targets)
    np.testing.assert_allclose(result[rollouts.mask], expected[0][rollouts.mask], **CLOSE)
    assert not result[~rollouts.mask].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_plus_plus(seed: int) -> None:
    rollouts = Rollouts(seed)
    expected = rollouts.verl("reinforce_plus_plus", rollouts.dense_rewards, config=SimpleNamespace(gamma=0.95))
    result = returns.discounted(rollouts.dense_rewards, gamma=0.95, mask=rollouts.mask)
    np.testing.assert_allclose(result, expected[1], **CLOSE)
    np.testing.assert_allclose(rollouts.whitened(result), expected[0], **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_reinforce_plus_plus_baseline(seed: int) -> None:
    rollouts = Rollouts(seed)
    expected = rollouts.verl("reinforce_plus_plus_baseline", index=rollouts.ids)[0]
    centred = group.normalise(rollouts.scores, rollouts.ids, scale="none", singleton="raw")
    result = group.whiten(centred, weights=rollouts.tokens)  # each token votes
    np.testing.assert_allclose(rollouts.on_tokens(result), expected, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_remax(seed: int) -> None:
    rollouts = Rollouts(seed)
    greedy = np.random.default_rng(seed).normal(size=len(rollouts.ids))
    expected = rollouts.verl("remax", reward_baselines=torch.from_numpy(greedy))[0]
    result = group.normalise(rollouts.scores, rollouts.ids, center="baseline", scale="none", baseline=greedy)
    np.testing.assert_allclose(rollouts.on_tokens(result)[rollouts.mask], expected[rollouts.mask], **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("zero_tail", [True, False])
@pytest.mark.parametrize(
    ("estimator", "align"), [("optimal_token_baseline", "sequence"), ("tir_optimal_token_baseline", "policy")]
)
@pytest.mark.parametrize("weighted", [True, False])
def test_optimal_token_baseline(seed: int, estimator: str, align: str, *, zero_tail: bool, weighted: bool) -> None:
    rollouts = Rollouts(seed, contiguous=align == "sequence")
    expected = rollouts.verl(
        estimator,
        rollouts.dense_rewards,
        index=rollouts.ids,
        old_log_probs=torch.from_numpy(rollouts.logprobs),
        sum_pi_squared=torch.from_numpy(rollouts.sum_pi_squared),
        rollout_is_weights=torch.from_numpy(rollouts.weights) if weighted else None,
        handle_zero_tail=zero_tail,
    )
    energies = 1 - 2 * np.exp(rollouts.logprobs) + rollouts.sum_pi_squared
    if weighted:
        energies *= rollouts.weights**2
    to_come = returns.discounted(rollouts.dense_rewards, gamma=1.0, mask=rollouts.mask)
    np.testing.assert_allclose(to_come, expected[1] * rollouts.mask, **CLOSE)
    result = optimal_token_baseline(
        to_come, energies, rollouts.ids, mask=rollouts.mask, align=align, zero_tail=zero_tail
    )
    np.testing.assert_allclose(result, expected[0], **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_gdpo(seed: int) -> None:
    rollouts = Rollouts(seed, contiguous=True)
    rng = np.random.default_rng(seed)
    rewards = rng.normal(size=(len(rollouts.ids), 3)).astype(np.float32)
    rewards[:, 1] = rng.integers(0, 2, size=len(rollouts.ids))
    weights = [1.0, 0.5, 2.0]
    names = ["right", "format", "length"]
    expected = rollouts.verl(
        "gdpo",
        index=rollouts.ids,
        config={"gdpo_reward_keys": names, "gdpo_reward_weights": weights},
        non_tensor_batch=dict(zip(names, rewards.T, strict=True)),
        batch={
            "prompts": torch.zeros(len(rollouts.ids), 2),
            "attention_mask": torch.from_numpy(np.pad(rollouts.mask, ((0, 0), (2, 0)), constant_values=True)).long(),
        },
    )[0]
    each = group.normalise(rewards.astype(np.float64), rollouts.ids, **advantage.compat("verl-0.9/grpo"))
    result = group.whiten(each @ np.array(weights), weights=rollouts.tokens)
    np.testing.assert_allclose(rollouts.on_tokens(result), expected, rtol=1e-5, atol=2e-6)  # verl's are float32


def test_a_reward_on_a_tool_token_reaches_no_token() -> None:
    """verl's scan drops it too, so pay it to the action before."""
    rewards = np.array([[0.0, 1.0, 0.0]])
    mask = np.array([[True, False, True]])
    zeros = torch.zeros(1, 3, dtype=torch.float64)
    expected = core_algos.compute_gae_advantage_return(
        torch.from_numpy(rewards), zeros, torch.from_numpy(mask).double(), 1.0, 1.0
    )[1]
    result = returns.gae(rewards, np.zeros((1, 3)), gamma=1.0, lam=1.0, mask=mask)[1]
    assert result[mask].tolist() == expected[0, [0, 2]].tolist() == [0.0, 0.0]
