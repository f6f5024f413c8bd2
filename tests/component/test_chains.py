"""Published systems as chains of components: they check, run, and come back from TOML."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import plain, ragged

from agentrl_core import Batch, loss, recipes
from agentrl_core.advantage import BaselineRelative, Discounted, Gae, GroupRelative, TrackedBaseline, TreeRelative
from agentrl_core.recipe import Recipe
from agentrl_core.recipes.igpo import InformationGain
from agentrl_core.recipes.max_at_k import MaxAtK
from agentrl_core.recipes.redit import NoiseReward
from agentrl_core.reward import AnswerAgreement, CombineReward, ImplicitProcess, LengthPenalty, OutcomeScore

WHITEN = GroupRelative(column="advantage", group_by="batch", voter="token", eps=0.0, variance_eps=1e-8)
CHAINS: dict[str, dict[str, object]] = {
    "dapo": {"reward": (OutcomeScore(), LengthPenalty(free=4, full_at=8))},
    "redit": {"reward": (OutcomeScore(), NoiseReward()), "advantage": GroupRelative()},
    "gdpo": {
        "advantage": (
            GroupRelative(column="reward.format", coefficient=0.5, add=True),
            GroupRelative(column="reward.correct", add=True),
            WHITEN,
        )
    },
    "arpo-hard": {"advantage": (GroupRelative(), TreeRelative(column="advantage", kind="none"))},
    "tree-grpo": {"advantage": (GroupRelative(add=True), GroupRelative(group_by="group_id,tree", add=True))},
    "treepo": {"advantage": (TreeRelative(kind="ancestors"), WHITEN)},
    "igpo": {
        "reward": (OutcomeScore(), InformationGain()),
        "advantage": (
            GroupRelative(column="gain", level="step", ddof=0, eps=0.0, variance_eps=1e-8),
            GroupRelative(level="step", rows="last", add=True, ddof=0, eps=0.0, variance_eps=1e-8),
            Discounted(column="advantage"),
        ),
    },
    "prime": {phase: recipes.PRIME.chain(phase) for phase in ("reward", "advantage")},
    "istar": {
        "reward": (OutcomeScore(), ImplicitProcess(level="step")),
        "advantage": (
            GroupRelative(column="process_reward", level="step", scale="none"),
            GroupRelative(level="step", scale="none", singleton="raw", add=True),
        ),
    },
    "reinforce++": {
        "advantage": (
            Discounted(column="", outcome="score", level="token"),
            GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
        )
    },
    "ppo": {"advantage": Gae(gamma=0.99, lam=0.95)},
    "pass@k": {"reward": (OutcomeScore(), MaxAtK(k=2)), "advantage": GroupRelative(center="none", scale="none")},
    "empo": {"reward": AnswerAgreement()},
    "opo": {"advantage": BaselineRelative(kind="weighted", column="trained_tokens")},
    "mssr": {
        "reward": OutcomeScore(success=1.0, failure=0.0),
        "advantage": (TrackedBaseline(), GroupRelative(column="advantage", group_by="batch")),
    },
    "gated": {"reward": (OutcomeScore(), CombineReward("reward.correct", kind="require"))},
}


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Return ragged groups with the columns that environments and models would add."""
    rollouts = ragged(5, members=3)
    rng = np.random.default_rng(0)
    tokens, steps = (int(rollouts.offsets(level)[-1]) for level in ("token", "step"))
    draws = rollouts.num_draws
    rollouts = rollouts.with_columns("token", value=rng.normal(size=tokens))
    for name in ("reward_model_logprob", "reward_reference_logprob"):
        rollouts = rollouts.with_columns("token", **{name: -rng.exponential(size=tokens)})
    rollouts = rollouts.with_columns("step", answer_logprob=-rng.exponential(size=steps))
    for name in ("reward.format", "reward.correct", "answer_cluster", "tree", "answer_parsed"):
        rollouts = rollouts.with_columns("draw", **{name: rng.integers(0, 2, size=draws)})
    return rollouts.with_columns("draw", answer_logprob_before=-rng.exponential(size=draws))


@pytest.mark.parametrize("name", CHAINS)
def test_a_system_as_a_chain(name: str, batch: Batch) -> None:
    recipe = Recipe(name=name, loss=loss.Policy(), **{"advantage": GroupRelative(), **CHAINS[name]})
    recipe = Recipe.from_toml(recipe.to_toml())
    recipe.check(batch)
    credited = recipe.credit(recipe.score(batch))
    advantages = credited.column("advantage", "token")
    assert np.isfinite(advantages).all()
    assert np.any(advantages != 0.0)
    if name in ("gdpo", "treepo", "reinforce++"):
        rows = [token.row for draw in plain(credited) if draw.valid for token in draw.tokens if token.trained]
        np.testing.assert_allclose([advantages[rows].mean(), advantages[rows].std(ddof=1)], [0.0, 1.0], atol=1e-4)
