"""Compare with public functions outside any package: single files of other projects, which are not stored here.

The folder of these files is named by the environment variable `AGENTRL_PEERS`; tests of missing files are skipped. The
files are verl-agent's gigpo/core_gigpo.py (`core_gigpo.py`), slime's slime/utils/ppo_utils.py (`slime_ppo_utils.py`),
and verl/trainer/ppo/core_algos.py of TreePO (`treepo_core_algos.py`) and Tree-GRPO (`treegrpo_core_algos.py`).
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from agentrl_core import Batch, Forest, advantage, group, returns
from agentrl_core.operators import tree

SEEDS = range(4)
CLOSE = {"rtol": 1e-6, "atol": 1e-6}


def peer(name: str) -> ModuleType:
    """Return one of the files as a module."""
    folder = os.environ.get("AGENTRL_PEERS")
    if not folder:
        pytest.skip("AGENTRL_PEERS names no folder")
    path = Path(folder, f"{name}.py")
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    spec = importlib.util.spec_from_file_location(f"peer_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Steps:
    """Steps of ragged trajectories in ragged groups, with scores that are exact in float32."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        sizes = [1, 1, 2, *rng.integers(2, 6, size=4)]
        lengths = rng.integers(1, 6, size=sum(sizes))
        lengths[0] = 1
        self.trajectory = np.repeat(np.arange(len(lengths)), lengths)
        self.group = np.repeat(np.arange(len(sizes)), sizes)[self.trajectory]
        self.step = np.concatenate([np.arange(length) for length in lengths])
        count = len(self.step)
        self.score = (rng.integers(-64, 65, size=len(lengths)) / 32)[self.trajectory]
        self.score[self.group == 2] = 0.5
        self.paid = np.where(rng.random(count) < 0.6, rng.integers(-8, 9, size=count) / 8, 0.0)
        self.state = rng.integers(0, 3, size=count)
        self.mask = torch.ones(count, 2)
        self.mask[:, 1] = torch.from_numpy(rng.integers(0, 2, size=count)).float()
        self.names = np.array([f"group {number}" for number in self.group], dtype=object)
        self.paths = np.array([f"trajectory {number}" for number in self.trajectory], dtype=object)
        self.observations = np.array([f"room {number}" for number in self.state], dtype=object)

    @property
    def rewards(self) -> torch.Tensor:
        """Return rewards with the score at the last token."""
        return torch.stack([torch.zeros(len(self.score)), torch.from_numpy(self.score).float()], dim=1)

    def to_come(self, module: ModuleType, gamma: float) -> torch.Tensor:
        columns = {"rewards": self.paid, "traj_uid": self.paths, "active_masks": np.ones(len(self.paid))}
        data = SimpleNamespace(non_tensor_batch=columns, batch={"input_ids": self.mask})
        return module.compute_step_discounted_returns(data, gamma)


@pytest.mark.parametrize("seed", SEEDS)
def test_verl_agent_returns(seed: int) -> None:
    steps = Steps(seed)
    expected = steps.to_come(peer("core_gigpo"), 0.9)
    result = returns.discounted(steps.paid, steps.trajectory, gamma=0.9)
    np.testing.assert_allclose(result, expected, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "plain"), [("verl-agent/episode", True), ("verl-agent/episode_std", False)])
@pytest.mark.parametrize("every_step", [True, False])
def test_verl_agent_episodes(seed: int, name: str, plain: bool, every_step: bool) -> None:
    steps = Steps(seed)
    function = peer("core_gigpo").episode_norm_reward
    # Files since October 2025 have another name for this argument.
    names = {"compute_mean_std_cross_all_data", "compute_mean_std_cross_steps"} & set(
        inspect.signature(function).parameters
    )
    assert len(names) == 1, "one of the names of verl-agent is that of the argument"
    options = {"remove_std": plain, names.pop(): every_step}
    expected = function(steps.rewards, steps.mask, steps.names, steps.paths, **options)
    units = {} if every_step else {"voter_ids": steps.trajectory}
    result = group.normalise(steps.score, steps.group, **units, **advantage.compat(name))
    np.testing.assert_allclose(result, expected[:, 0], **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("name", "plain"), [("verl-agent/step", True), ("verl-agent/step_std", False)])
def test_verl_agent_anchors(seed: int, name: str, plain: bool) -> None:
    steps = Steps(seed)
    module = peer("core_gigpo")
    anchors = module.build_step_group(steps.observations, steps.names)
    expected = module.step_norm_reward(steps.to_come(module, 0.9), steps.mask, anchors, remove_std=plain)
    to_come = returns.discounted(steps.paid, steps.trajectory, gamma=0.9)
    keys = [f"{name} {state}" for name, state in zip(steps.names, steps.state, strict=True)]
    result = group.normalise(to_come, keys, **advantage.compat(name))
    np.testing.assert_allclose(result, expected[:, 0], **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("scale", ["none", "std"])
@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_verl_agent_gigpo(seed: int, scale: str, weight: float) -> None:
    steps = Steps(seed)
    module = peer("core_gigpo")
    expected, _ = module.compute_gigpo_outcome_advantage(
        steps.rewards,
        steps.to_come(module, 0.95),
        steps.mask,
        steps.observations,
        steps.names,
        steps.paths,
        step_advantage_w=weight,
        mode="mean_norm" if scale == "none" else "mean_std_norm",
    )
    our_advantages = advantage.gigpo(
        steps.score,
        steps.group,
        steps.trajectory,
        steps.step,
        steps.observations.tolist(),
        steps.paid,
        gamma=0.95,
        step_weight=weight,
        scale=scale,
    )
    np.testing.assert_allclose(our_advantages, expected[:, 0], **CLOSE)
    result = as_batch(steps)
    for link in (
        advantage.Discounted(gamma=0.95),
        advantage.GroupRelative(
            column="advantage", level="step", group_by="group_id,state_key", scale=scale, coefficient=weight
        ),
        advantage.GroupRelative(level="step", scale=scale, singleton="raw", add=True),
    ):
        result = link(result)
    np.testing.assert_allclose(result.column("advantage", "step"), expected[:, 0], **CLOSE)


def as_batch(steps: Steps) -> Batch:
    """Return the same rollouts in a forest; its steps are in the same order."""
    forest = Forest()
    for number in range(int(steps.group.max()) + 1):
        forest.add_group(number, f"task {number}")
    for number in range(int(steps.trajectory.max()) + 1):
        rows = np.flatnonzero(steps.trajectory == number)
        # Members are numbered over the batch, so that trajectories are in the order in which they were made.
        trajectory = forest.start(int(steps.group[rows[0]]), number)
        for row in rows:
            kind = "prompt" if row == rows[0] else "observation"
            forest.append(trajectory, [1], kind=kind, state=f"room {steps.state[row]}")
            forest.append(trajectory, [2], kind="action", logprobs=[-1.0])
            forest.step(trajectory, reward=float(steps.paid[row]))
        forest.finish(trajectory, reward=float(steps.score[rows[0]]))
    batch = forest.freeze()
    return batch.with_columns("draw", score=batch.column("reward", "draw"))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("length", [5, 128, 300])
def test_slime_gae(seed: int, length: int) -> None:
    rng = np.random.default_rng(seed)
    rewards, values = rng.normal(size=(2, 6, length))
    module = peer("slime_ppo_utils")
    result = returns.gae(rewards, values, gamma=0.97, lam=0.9)
    for function in (module.vanilla_gae, module.chunked_gae):
        expected = function(torch.from_numpy(rewards), torch.from_numpy(values), 0.97, 0.9)
        for ours, theirs in zip(result, expected, strict=True):
            np.testing.assert_allclose(ours, theirs, **CLOSE)
    to_come = module.chunked_discounted_returns(torch.from_numpy(rewards), 0.97)
    np.testing.assert_allclose(returns.discounted(rewards, gamma=0.97), to_come, **CLOSE)


class Branches:
    """Leaves of ragged trees, each named by its path, with scores that are exact in float32."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.paths = [[0, 0], [1, 0, 0], [1, 0, 1]]
        for prompt in range(2, 8):
            for first in range(int(rng.integers(1, 4))):
                for second in range(int(rng.integers(1, 4))):
                    self.paths += [[prompt, first, second, leaf] for leaf in range(int(rng.integers(1, 4)))]
        order = rng.permutation(len(self.paths))
        self.paths = [self.paths[place] for place in order]
        self.scores = rng.integers(-32, 33, size=len(order)) / 32
        self.names = np.array(["#".join(map(str, path)) for path in self.paths], dtype=object)
        self.mask = torch.from_numpy(rng.integers(0, 2, size=(len(order), 3)).astype(np.float64))
        self.mask[:, 0] = 1.0

    @property
    def rewards(self) -> torch.Tensor:
        rewards = torch.zeros_like(self.mask)
        rewards[:, 0] = torch.from_numpy(self.scores)
        return rewards


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("strategy", "weighting"), [("group_size", "size"), ("average", "equal")])
@pytest.mark.parametrize("skip", [False, True])
def test_treepo(seed: int, strategy: str, weighting: str, skip: bool) -> None:
    rows = Branches(seed)
    rows.scores[[path[:2] == [3, 0] for path in rows.paths]] = 0.5
    expected, _ = peer("treepo_core_algos").compute_tree_reinforce_plus_plus_baseline_outcome_advantage(
        rows.rewards, rows.mask, rows.names, remove_no_std_subgroup=skip, adv_weight_strategy=strategy
    )
    elements = [element for path in rows.paths for element in path]
    offsets = np.concatenate([[0], np.cumsum([len(path) for path in rows.paths])])
    built = tree.build(elements, offsets)
    result = tree.ancestor_relative(*built, rows.scores, weighting=weighting, skip_constant=skip, singleton="raw")
    mask = rows.mask.numpy()
    tokens = result[:, None] * mask
    whitened = group.whiten(tokens.ravel(), valid=mask.ravel() > 0).reshape(mask.shape)
    np.testing.assert_allclose(whitened * mask, expected, **CLOSE)


@pytest.mark.parametrize("seed", SEEDS)
def test_tree_grpo(seed: int) -> None:
    rows = Branches(seed)
    prompts = np.array([path[0] for path in rows.paths])
    trees = np.array([path[0] * 10 + path[1] for path in rows.paths])
    module = peer("treegrpo_core_algos")
    expected, _ = module.compute_tree_grpo_outcome_advantage(rows.rewards, rows.mask, prompts, trees)
    inner = group.normalise(rows.scores, prompts, **advantage.compat("tree-grpo/prompt"))
    result = group.normalise(inner, trees, **advantage.compat("tree-grpo/prompt"))
    np.testing.assert_allclose(result[:, None] * rows.mask.numpy(), expected, **CLOSE)
    alone, _ = module.compute_grpo_outcome_advantage(rows.rewards, rows.mask, prompts)
    np.testing.assert_allclose(inner[:, None] * rows.mask.numpy(), alone, **CLOSE)
