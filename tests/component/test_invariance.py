"""The number of rows (steps, turns) that a rollout is split into changes no advantage and no loss weight."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl_core import Batch, Forest, advantage, group, recipes, weight
from agentrl_core.advantage import (
    BaselineRelative,
    Discounted,
    EntropyBonus,
    Gae,
    GroupRelative,
    Normalisation,
    TrackedBaseline,
    TreeRelative,
)
from agentrl_core.advantage.baseline import OptimalTokenBaseline
from agentrl_core.component.batch_component import BatchComponent
from agentrl_core.recipes import ace, gdro_rl, gtpo, gui_libra, seed_grpo, vppo, xrpo
from agentrl_core.recipes.c_morl import ConstrainedSum
from agentrl_core.recipes.copo import Consistency
from agentrl_core.recipes.dcpo import CumulativeStandardised
from agentrl_core.recipes.dyna_mind import Refinement
from agentrl_core.recipes.egsw import SoftmaxScaled
from agentrl_core.recipes.prime import LeaveOneOutProcess
from agentrl_core.recipes.remax import GreedyRelative
from agentrl_core.recipes.riskpo import TailRisk
from agentrl_core.recipes.t_ppo import LatestVersionOnly
from agentrl_core.select import Band
from agentrl_core.weight import (
    ColumnScaled,
    EntropyScaled,
    ExpertMask,
    FlagFilter,
    GroupFilter,
    ImportanceWeight,
    MarkedScaled,
    SelectDraws,
    SelectTokens,
    SignalRescale,
)
from agentrl_core.weight.denominators import constant_denominator, sequence_mean, token_mean
from agentrl_core.weight.importance import TrustRegion

ADVANTAGES = [
    GroupRelative(),
    GroupRelative(scale="none"),
    GroupRelative(center="leave_one_out", scale="none"),
    GroupRelative(scale_by="batch"),
    GroupRelative(group_by="batch", voter="token", eps=0.0, variance_eps=1e-8),
    GroupRelative(center="median", median="lower", scale="mad", eps=1e-3),
    GroupRelative(level="token", group_by="group_id", voter="trajectory"),
    BaselineRelative(column="prior"),
    BaselineRelative(kind="weighted", column="trained_tokens"),
    BaselineRelative(kind="shrunk", column="prior", leave_one_out=True),
    Consistency(),
    ConstrainedSum(columns="prior,trained_tokens"),
    CumulativeStandardised(),
    Gae(lam=0.9, gamma=0.99),
    GreedyRelative(),
    Discounted(column="", outcome="score", level="token", gamma=0.9),
    LeaveOneOutProcess(column="entropy"),
    OptimalTokenBaseline(align="sequence"),
    Refinement(),
    TailRisk(bundle=2),
    TrackedBaseline(kind="ema"),
    TrackedBaseline(kind="window"),
    # At level `step` a step is a node of the tree, and values of a step depend on where steps end.
    TreeRelative(level="token"),
    TreeRelative(level="token", kind="sibling", normalisation=Normalisation()),
    *(TreeRelative(kind=kind) for kind in ("ancestors", "baseline", "order")),
]
LINKS = [
    EntropyScaled(),
    EntropyScaled(level="draw", kind="relative", group_by="group_id"),
    EntropyBonus(),
    EntropyBonus(level="draw", coefficient=-0.1, at_most=None),
    gui_libra.NegativeBySuccess(),
    ace.NegativeByConfidence(),
    SignalRescale(),
    SignalRescale(kind="members"),
    SignalRescale(kind="rows", group_by="group_id"),
    ExpertMask(),
    SelectTokens(),
    SelectTokens(group_by="draw", kind="top", rounding="ceil", denominator="kept"),
    SelectDraws(fraction=0.5),
    SelectDraws(kind="max_variance", count=2, group_by="batch"),
    SelectDraws(fraction=0.5, denominator="all"),
    SelectDraws(kind="pivot"),
    GroupFilter(band=Band(at_least=0.1, at_most=1.9)),
    FlagFilter(flags="", shorter_than=4),
    LatestVersionOnly(),
    *(gtpo.ConflictTokens(negative=0.5, per_count=per_count) for per_count in (False, True)),
    gtpo.EntropyGate(),
    ColumnScaled(column="advantage", kind="exponential", at_most=20.0),
    seed_grpo.AnswerEntropyScaled(),
    ColumnScaled(column="prior"),
    MarkedScaled(column="advantage", marked=0.5),
    gdro_rl.DifficultyScaled(column="prior"),
    SoftmaxScaled(),
    vppo.InputDependency(),
    xrpo.Novelty(),
    *(ImportanceWeight(level=level) for level in ("token", "sequence", "geometric", "prefix", "prefix_min")),
    ImportanceWeight(kind="veto", at_least=0.3, at_most=None),
    ImportanceWeight(kind="filter", at_least=0.3),
    TrustRegion(aggregate="mean"),
]
MODEL_COLUMNS = ("recomputed_logprob", "reference_logprob", "current_logprob", "perturbed_logprob", "entropy")


def rolled(seed: int, *, split: bool) -> Batch:
    """Return groups of rollouts; with `split`, the same tokens in random numbers of steps instead of one."""
    content, cuts = np.random.default_rng(seed), np.random.default_rng(seed + 1)
    forest = Forest(seed=seed)
    for task in range(4):
        forest.add_group(task, f"task {task}")
        for member in range(int(content.integers(1, 5))):
            trajectory = forest.start(task, member)
            forest.append(trajectory, [1, task], kind="prompt")
            count = int(content.integers(1, 9))
            tokens, logprobs = content.integers(0, 3, size=count), -content.exponential(size=count)
            trainable = content.random(count) < 0.8
            trainable[0] = True
            inner = np.flatnonzero(cuts.random(count - 1) < 0.5) + 1 if split else []
            for first, last in itertools.pairwise([0, *inner, count]):
                forest.append(
                    trajectory,
                    tokens[first:last].tolist(),
                    kind="action",
                    logprobs=logprobs[first:last].tolist(),
                    trainable=trainable[first:last].astype(int).tolist(),
                )
                forest.step(trajectory)
            reward = None if content.random() < 0.1 else float(content.integers(0, 3))
            forest.finish(trajectory, reward=reward, success=bool(reward))
    batch = forest.freeze()
    size = len(batch.column("token", "token"))
    columns = {name: -content.exponential(size=size).astype(np.float32) for name in MODEL_COLUMNS}
    columns["entropy"] = -columns["entropy"]
    columns["current_entropy"] = columns["entropy"]
    columns["value"] = content.normal(size=size).astype(np.float32)
    columns["sum_probability_squared"] = content.random(size=size).astype(np.float32)
    batch = batch.with_columns("token", **columns)
    draws = batch.num_draws
    facts = {name: content.integers(0, 2, size=draws) for name in ("answer_cluster", "answer_parsed", "refined")}
    scored = np.flatnonzero(np.isfinite(batch.column("reward", "draw")))
    _, first = np.unique(batch.column("group_id", "draw")[scored], return_index=True)
    facts["greedy"] = np.isin(np.arange(draws), scored[first]).astype(np.int64)
    batch = batch.with_columns("draw", prior=content.random(draws), policy_kl=content.random(draws), **facts)
    return batch.with_columns("draw", score=batch.column("reward", "draw"))


def same(seed: int, *links: BatchComponent) -> None:
    """Check that the links give tokens the same values, bit for bit, in one row and in several."""
    unsplit, parts = rolled(seed, split=False), rolled(seed, split=True)
    for link in links:
        unsplit, parts = link(unsplit), link(parts)
    for name in {name for link in links for _, name in link.makes}:
        np.testing.assert_array_equal(unsplit.column(name, "token"), parts.column(name, "token"), err_msg=name)


def test_the_rollouts_are_the_same_and_the_rows_are_not() -> None:
    unsplit, parts = rolled(3, split=False), rolled(3, split=True)
    assert len(unsplit.steps) == unsplit.num_draws
    assert len(parts.steps) > parts.num_draws
    for name in ("token", "position", "trainable", "behaviour_logprob"):
        np.testing.assert_array_equal(unsplit.column(name, "token"), parts.column(name, "token"))


def test_every_component_is_here() -> None:
    modules = [
        importlib.import_module(each.name)
        for package in (advantage, weight)
        for each in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ]
    exported = {
        kind.__name__
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, BatchComponent)
        and kind.__module__ == module.__name__
        and not inspect.isabstract(kind)
    }
    every = {type(component) for component in (*ADVANTAGES, *LINKS)}
    listed = {kind.__name__ for kind in every if not kind.__module__.startswith("agentrl_core.recipes")}
    assert len(exported) > 15
    assert listed == exported


@pytest.mark.parametrize("component", ADVANTAGES, ids=str)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_advantages(component: BatchComponent, seed: int) -> None:
    same(seed, component)


@pytest.mark.parametrize("component", LINKS, ids=lambda link: type(link).__name__)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_weights(component: BatchComponent, seed: int) -> None:
    same(seed, GroupRelative(), component)


@pytest.mark.parametrize("denominator", ["token_mean", "sequence_mean", "constant"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), shared=st.sampled_from(["each", "split", "owner"]))
def test_denominators(denominator: str, seed: int, shared: str) -> None:
    weights = []
    for split in (False, True):
        batch = rolled(seed, split=split)
        valid = np.isfinite(batch.column("score", "draw"))
        constant = 50.0 if denominator == "constant" else None
        options = {"denominator": denominator, "constant": constant, "shared": shared, "valid": valid}
        weights.append(batch.token_weights(np.arange(batch.num_draws), **options))
    # The shares of a turn are added first, and a third has no end.
    np.testing.assert_allclose(*weights, rtol=1e-15 if shared == "split" else 0, atol=0)


@pytest.mark.parametrize("name", ["GRPO", "RLOO", "ARPO"])
def test_recipes(name: str) -> None:
    recipe = getattr(recipes, name)
    unsplit, parts = (recipe.credit(rolled(11, split=split)) for split in (False, True))
    np.testing.assert_array_equal(unsplit.column("advantage", "token"), parts.column("advantage", "token"))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5, width=32), st.integers(1, 4)), min_size=1, max_size=12),
    st.sampled_from(["mean", "leave_one_out", "median"]),
    st.sampled_from(["std", "none", "mad", "range"]),
    st.integers(0, 1),
)
def test_columns_with_the_rollout_as_the_unit(
    rollouts: list[tuple[int, float, int]], center: str, scale: str, ddof: int
) -> None:
    groups, scores, parts = (np.array(column) for column in zip(*rollouts, strict=True))
    options = {"center": center, "scale": scale, "ddof": ddof, "eps": 1e-3}
    once = group.normalise(scores, groups, **options)
    rows = np.repeat(np.arange(len(parts)), parts)
    split = group.normalise(scores[rows], groups[rows], voter_ids=rows, **options)
    np.testing.assert_allclose(split, once[rows], rtol=1e-9, atol=1e-9)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=8))
def test_denominators_with_rollout_ids(rollouts: list[list[int]]) -> None:
    rows = np.repeat(np.arange(len(rollouts)), [len(parts) for parts in rollouts])
    split, unsplit = list(itertools.chain(*rollouts)), [sum(parts) for parts in rollouts]
    np.testing.assert_allclose(token_mean(split), token_mean(unsplit))
    np.testing.assert_allclose(sequence_mean(split, rollout_ids=rows), sequence_mean(unsplit))
    np.testing.assert_allclose(constant_denominator(split, 9.0, rollout_ids=rows), constant_denominator(unsplit, 9.0))
