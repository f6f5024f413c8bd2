"""Published systems as chains of components: they check, run, and come back from TOML."""

from __future__ import annotations

import numpy as np
import pytest
from rollouts import plain, ragged

from agentrl_core import Batch, loss
from agentrl_core.advantage import (
    BaselineRelative,
    Gae,
    GroupInGroup,
    GroupRelative,
    Normalisation,
    NormalisedReturns,
    TailRisk,
    TrackedBaseline,
    TreeRelative,
)
from agentrl_core.recipe import Recipe
from agentrl_core.reward import (
    AnswerAgreement,
    Dither,
    Fuse,
    ImplicitProcess,
    InformationGain,
    LengthPenalty,
    MaxAtK,
    Outcome,
)

WHITEN = GroupRelative(column="advantage", group_by="batch", unit="token", eps=0.0, variance_eps=1e-8)
PLAIN = Normalisation(scale="none")
CHAINS: dict[str, dict[str, object]] = {
    "dapo": {"reward": (Outcome(), LengthPenalty(free=4, limit=8))},
    "redit": {"reward": (Outcome(), Dither()), "advantage": GroupRelative()},
    "gdpo": {
        "advantage": (
            GroupRelative(column="reward.format", weight=0.5, add=True),
            GroupRelative(column="reward.correct", add=True),
            WHITEN,
        )
    },
    "arpo-hard": {"advantage": (GroupRelative(), TreeRelative(column="advantage", compare="none"))},
    "tree-grpo": {"advantage": (GroupRelative(add=True), GroupRelative(group_by="group_id,tree", add=True))},
    "treepo": {"advantage": (TreeRelative(compare="ancestors"), WHITEN)},
    "igpo": {
        "reward": (Outcome(), InformationGain()),
        "advantage": NormalisedReturns(column="gain", outcome="score", zero_is_missing=True),
    },
    "prime": {
        "reward": (Outcome(), ImplicitProcess(scale="max_return")),
        "advantage": (
            NormalisedReturns(
                column="process_reward",
                outcome="score",
                level="token",
                unit="trajectory",
                count_correction=True,
                stream_weight=5.0,
                outcome_weight=5.0,
                normalisation=PLAIN,
            ),
            GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
        ),
    },
    "istar": {
        "reward": (Outcome(), ImplicitProcess(granularity="step")),
        "advantage": GroupInGroup(anchor="group_id", column="process_reward", gamma=0.0),
    },
    "reinforce++": {
        "advantage": (
            NormalisedReturns(column="", outcome="score", level="token", normalise="none"),
            GroupRelative(column="advantage", level="token", group_by="batch", eps=0.0, variance_eps=1e-8),
        )
    },
    "ppo": {"advantage": Gae(gamma=0.99, lam=0.95)},
    "pass@k": {"reward": (Outcome(), MaxAtK(k=2)), "advantage": GroupRelative(center="none", scale="none")},
    "empo": {"reward": AnswerAgreement()},
    "opo": {"advantage": BaselineRelative(baseline="weighted", column="trained_tokens")},
    "mssr": {
        "reward": Outcome(success=1.0, failure=0.0),
        "advantage": (TrackedBaseline(), GroupRelative(column="advantage", group_by="batch")),
    },
    "risk": {"advantage": TailRisk(bundle=2)},
    "gated": {"reward": (Outcome(), Fuse("reward.correct", operation="require"))},
}


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Ragged groups with what environments and models would add."""
    made = ragged(5, members=3)
    rng = np.random.default_rng(0)
    tokens, steps = (int(made.offsets(level)[-1]) for level in ("token", "step"))
    draws = made.num_draws
    made = made.with_columns("token", value=rng.normal(size=tokens))
    for name in ("reward_model_logprob", "reward_reference_logprob"):
        made = made.with_columns("token", **{name: -rng.exponential(size=tokens)})
    made = made.with_columns("step", answer_logprob=-rng.exponential(size=steps))
    for name in ("reward.format", "reward.correct", "answer_cluster", "tree", "answer_parsed"):
        made = made.with_columns("draw", **{name: rng.integers(0, 2, size=draws)})
    return made.with_columns("draw", answer_logprob_before=-rng.exponential(size=draws))


@pytest.mark.parametrize("name", CHAINS)
def test_a_system_as_a_chain(name: str, batch: Batch) -> None:
    recipe = Recipe(name=name, loss=loss.Policy(), **{"advantage": GroupRelative(), **CHAINS[name]})
    recipe = Recipe.from_toml(recipe.to_toml())
    recipe.check(batch)
    made = recipe.credit(recipe.score(batch))
    found = made.column("advantage", "token")
    assert np.isfinite(found).all()
    assert np.any(found != 0.0)
    if name in ("gdpo", "treepo", "prime", "reinforce++"):
        rows = [token.row for draw in plain(made) if draw.valid for token in draw.tokens if token.trained]
        np.testing.assert_allclose([found[rows].mean(), found[rows].std(ddof=1)], [0.0, 1.0], atol=1e-4)
