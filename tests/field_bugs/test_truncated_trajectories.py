"""A trajectory that finish(..., status="truncated") ends is truncated for every component."""

import numpy as np

import agentrl_core as arl
from agentrl_core import advantage, recipes, weight


def two_members(*, reasons, statuses, with_step):
    """Return a batch of two trajectories; the second one is truncated."""
    forest = arl.Forest()
    forest.add_group(0, "task")
    for member in range(2):
        trajectory = forest.start(0, member)
        forest.append(trajectory, [1, 2], kind="prompt")
        forest.append(trajectory, [3, 4], kind="action", logprobs=[-0.5, -0.5], finish_reason=reasons[member])
        if with_step:
            forest.step(trajectory, truncated=bool(member))
        forest.finish(trajectory, reward=0.0, status=statuses[member])
    return forest.freeze()


def both_ways():
    """Truncate by the step's flag, then by the trajectory's status."""
    yield two_members(reasons=("stop", "stop"), statuses=("finished", "finished"), with_step=True)
    yield two_members(reasons=("stop", "length"), statuses=("finished", "truncated"), with_step=False)


def test_overlong_filter_drops_a_trajectory_with_status_truncated():
    """AReaL#1637, TRL#4976: a truncated rollout was trained as if the episode had ended."""
    recipe = recipes.GRPO.replace(weight=weight.FlagFilter())
    for batch in both_ways():
        assert recipe.credit(batch).column("keep", "draw").tolist() == [1, 0]


def test_gae_bootstraps_a_trajectory_with_status_truncated():
    """AReaL#1637, TRL#4976: the value after the last token of a truncated rollout is next_value, not 0."""
    recipe = recipes.GRPO.replace(advantage=advantage.Gae(at_truncation="bootstrap"))
    for batch in both_ways():
        valued = batch.with_columns("token", value=np.full(4, 0.5), next_value=np.full(4, 0.5))
        assert recipe.credit(valued).column("advantage", "token").tolist()[-1] == 0.0
